# SPDX-License-Identifier: Apache-2.0
"""What the functions answer, library by library. Errors are given by kind."""

import pytest

from .support import DEVICE, LISTS, WITH_LISTS, answer

LIBRARIES: dict[str, dict[str, bool | str]] = {
    "strings": {
        "'tacocat'.charAt(3) == 'o' && 'tacocat'.charAt(7) == ''": True,
        "'abc'.charAt(4) == ''": "out_of_range",
        "'tacocat'.indexOf('ac', 3) == -1 && 'tacocat'.lastIndexOf('ac') == 1": True,
        "'hello'.replace('l', 'L', 1) == 'heLlo'": True,
        "'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']": True,
        "'ÀB'.lowerAscii() == 'Àb'": True,
        "' a\u00a0'.trim() == 'a'": True,
        "'abc'.substring(1, 4) == ''": "out_of_range",
        "['a', 'b'].join('-') == 'a-b'": True,
        "strings.quote('a\\n') == '\"a\\\\n\"'": True,
        "'%s is %d, %.2f'.format(['a', 1, 1.5]) == 'a is 1, 1.50'": True,
        "'%d'.format(['a']) == ''": "compile:format",
        "'abc'.reverse() == 'cba'": "compile:no_matching_overload",
    },
    "regex": {
        "'h100'.matches('^h[0-9]+$')": True,
        "'a\\n'.matches('a$')": False,
        "'1g.10gb'.find('[0-9]+g') == '1g' && '1g.10gb'.findAll('[0-9]+') == ['1', '10']": True,
        "'a'.matches('(?=a)')": "compile:invalid_literal",
        "'a'.find('(?=a)') == ''": "compile:program",
        "'a'.matches(device.attributes['gpu.example.com'].model + '(')": "regex",
    },
    "lists": {
        "[3, 1, 2].max() == 3 && [1, 2].sum() == 3 && [1, 2].isSorted()": True,
        "[].max() == 1": "empty_list",
        "[3, 1, 2].sort() == [1, 2, 3] && ['bb', 'a'].sortBy(x, x.size()) == ['a', 'bb']": True,
        "[1, 1, 2].distinct() == [1, 2] && [[1], [2]].flatten() == [1, 2]": True,
        "lists.range(3).slice(1, 3) == [1, 2] && [1, 2].reverse() == [2, 1]": True,
        "[1].first().value() == 1 && !dyn([]).last().hasValue()": True,
        "['a', 1].size() == 2": "compile:type_mismatch",
    },
    "sets": {
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])": True,
    },
    "quantity": {
        "device.capacity['gpu.example.com'].memory == quantity('40Gi')": True,
        "quantity('1').add(quantity('500m')).compareTo(quantity('1.5')) == 0": True,
        "quantity('2000m').isInteger()": False,
        "quantity('1.5').asInteger() == 1": "conversion",
        "sign(quantity('-1')) == -1 && quantity('50k').asApproximateFloat() == 50000.0": True,
        "isQuantity('1K')": False,
        "quantity('Gi') == quantity('0') && !isQuantity('Ei')": True,
        "quantity('1K').isInteger()": "parse",
        "quantity('1') < quantity('2')": "compile:no_matching_overload",
        "quantity('1') != dyn('1') && !(dyn('1') == dyn(quantity('1')))": True,
        "dyn(quantity('1')) == dyn('1')": "no_such_overload",
    },
    "semver": {
        "device.attributes['gpu.example.com'].version.isLessThan(semver('1.10.0'))": True,
        "semver('1.0.0-rc.1').compareTo(semver('1.0.0')) == -1 && semver('1.2.3').minor() == 2": True,
        "semver('v1.2', true) == semver('1.2.0')": True,
        "isSemver('1.2')": False,
        "semver('1.2').major() == 1": "parse",
        "semver('1.0.0+a') == semver('1.0.0+b')": True,
    },
    "ip": {
        "ip('::1').family() == 6 && ip('127.0.0.1').isLoopback() && isIP('10.0.0.1')": True,
        "isIP('010.0.0.1') || isIP('::ffff:1.2.3.4') || isIP('fe80::1%eth0')": False,
        "ip.isCanonical('2001:DB8::1')": False,
        "ip('224.0.0.1').isLinkLocalMulticast() && ip('ff02::1').isLinkLocalMulticast()": True,
        "ip('10.0.0.1').isGlobalUnicast() && !ip('255.255.255.255').isGlobalUnicast()": True,
        "string(ip('0:0::1')) == '::1' && ip('::1') == ip('0::1')": True,
        "ip('x').family() == 4": "parse",
        "dyn(ip('1.2.3.4')) == '1.2.3.4'": "no_such_overload",
    },
    "cidr": {
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('::1'))": True,
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.0.0.0/8').containsCIDR('0.0.0.0/0')": True,
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.1.2.3/8').ip() == ip('10.1.2.3')": True,
        "cidr('10.0.0.0/8').prefixLength() == 8 && string(cidr('10.0.0.0/8')) == '10.0.0.0/8'": True,
        "isCIDR('10.0.0.0/33') || isCIDR('10.0.0.0/08') || isCIDR('10.0.0.0')": False,
        "cidr('10.0.0.0/8').containsIP('x')": "no_such_overload",
        "cidr('10.0.0.0/8').containsCIDR('x')": "parse",
    },
    "url": {
        "url('https://u@h.example:80/a b?x=1&x=2#f').getHost() == 'h.example:80'": True,
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80'": True,
        "url('https://h/a b').getEscapedPath() == '/a%20b' && url('/p').getScheme() == ''": True,
        "url('https://h/?x=1&x=2&;&y=%20').getQuery() == {'x': ['1', '2'], 'y': [' ']}": True,
        "isURL('example.com') || isURL('http://h/%zz') || isURL('http://a:b:1/') || isURL('http://[x]/')": False,
        "url('x:') == url('x://') && url('https://A') != url('https://a')": True,
        "url('example.com').getHost() == ''": "parse",
    },
    "format": {
        "!format.dns1123Label().validate('my-label').hasValue()": True,
        "format.dns1123Label().validate('a.b').value() == ['must not contain dots']": True,
        "format.named('uuid').value() == format.uuid() && !format.named('x').hasValue()": True,
        "format.dns1123LabelPrefix().validate('a-').hasValue()": False,
        "format.dns1123Label().validate('a-').hasValue()": True,
        "format.qualifiedName().validate('/x').value() == ['prefix part must be non-empty']": True,
        "!format.date().validate('2024-02-29').hasValue() && format.date().validate('2023-02-29').hasValue()": True,
        "!format.datetime().validate('2024-01-01T00:00:00Z').hasValue()": True,
        "format.uri().validate('x').value() == ['parse \"x\": invalid URI for request']": True,
        "format.byte().validate('').hasValue() && !format.byte().validate('aGk=').hasValue()": True,
        "format.email().validate('x').hasValue()": "compile:undeclared",
    },
    "time": {
        "timestamp('2024-02-29T23:30:00Z').getDayOfYear() == 59": True,
        "timestamp('2024-02-29T23:30:00Z').getDate('+01:00') == 1": True,
        "timestamp('2024-06-01T00:00:00Z').getHours('Europe/Berlin') == 2": True,
        "timestamp('2024-06-01T00:00:00Z').getHours('No/Where') == 2": "time_zone",
        "duration('90m').getHours() == 1 && string(duration('90s')) == '90s'": True,
        "timestamp('2024-01-01T00:00:00Z') - duration('1s') < timestamp('2024-01-01T00:00:00Z')": True,
        "duration('1d') == duration('24h')": "compile:invalid_literal",
    },
    "conversions": {
        "int('5') == 5 && uint(5) == 5u && double('1e3') == 1000.0 && string(1e6) == '1e+06'": True,
        "type(1) == int && type(device) == map && type(null) == null_type": True,
        "bytes('é').size() == 2 && string(b'\\303\\251') == 'é'": True,
        "true || int('x') == 1": "compile:program",
        "int(device.attributes['gpu.example.com'].model) == 1": "conversion",
    },
    "optionals": {
        "optional.of(1).optMap(x, x + 1).value() == 2": True,
        "device.attributes['gpu.example.com'].?model.orValue('') == 'A100'": True,
        "device.attributes[?'none'].hasValue() && !device.attributes['gpu.example.com'].?none.hasValue()": True,
        "optional.none().value() == 1": "optional_none",
        "optional.unwrap([optional.of(1), optional.none()]) == [1] && [?optional.none()] == []": True,
    },
    "macros": {
        "[1, 2].all(x, x > 0) && [1, 2].exists_one(x, x == 1) && [1, 2].map(x, x > 1, x * 2) == [4]": True,
        "[1, 2].transformMap(i, v, v > 1, v * 10) == {1: 20} && {'a': 1}.exists(k, v, k == 'a' && v == 1)": True,
        "[1, 0].exists(x, 1 / x == 1) && ![0, 2].all(x, 1 / x == 1)": True,
        "cel.bind(x, 1 / 0, true) && cel.bind(x, 2, x * x == 4)": True,
        "has(device.attributes['gpu.example.com'].none) || has({'a': 1}.b)": False,
        "[1].existsOne(x, true)": "compile:undeclared",
    },
    "authorization": {
        "dyn(1).check('get').allowed()": "no_such_overload",
        "authorizer.path('/').check('get').allowed()": "compile:undeclared",
    },
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [pytest.param(*case, id=f"{name}: {case[0]}") for name, cases in LIBRARIES.items() for case in cases.items()],
)
def test_functions_answer_as_in_kubernetes(expression: str, expected: bool | str) -> None:
    assert answer(expression) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.attributes['gpu.example.com'].numa.includes(1)", True),
        ("device.attributes['gpu.example.com'].numa.exists(n, n == 0)", True),
        ("1 in device.attributes['gpu.example.com'].numa", True),
        ("device.attributes['gpu.example.com'].one.includes(1)", False),
        ("device.attributes['gpu.example.com'].numa == 0", False),
    ],
)
def test_attributes_may_be_lists(expression: str, expected: bool) -> None:
    assert answer(expression, LISTS, WITH_LISTS) is expected
    assert answer("device.attributes['gpu.example.com'].count.includes(7)", DEVICE, WITH_LISTS) is True
