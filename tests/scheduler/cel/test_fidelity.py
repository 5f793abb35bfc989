# SPDX-License-Identifier: Apache-2.0
"""Rules of Kubernetes' CEL that random expressions beside its own code have shown, one table for each."""

import json
from pathlib import Path

import pytest

from dra_driver.scheduler.cel import Environment
from tests.golden.cel import __main__ as runner

from .support import DEVICE, WITH_LISTS, WITHOUT_LISTS, answer

EXACT: dict[str, dict[str, bool | str]] = {
    "at one place, a list of different types is reported before a wrong format": {
        "[null, '%%'.format([1])] == []": "compile:type_mismatch",
        "['%%'.format([1]), 1] == []": "compile:format",
    },
    "the query of a URL is a map that hashes keys": {
        "semver('1.2.3') in dyn(url('/?a=b').getQuery())": "internal",
        "dyn(1) in url('/?a=b').getQuery()": False,
        "url('/?a=b&a=c').getQuery() == {'a': ['b', 'c']}": True,
    },
    "the accumulator's old name is refused for loop variables, and for nothing else": {
        "[1].all(__result__, true)": "compile:macro",
        "[1].transformList(i, __result__, i) == []": "compile:macro",
        "cel.bind(__result__, 1, __result__ == 1)": True,
        "cel.bind(__result__, 1, [1].all(x, x == __result__))": True,
        "optional.of(1).optMap(__result__, __result__ + 1).value() == 2": True,
    },
    "a name with a dot in front is never that of a local variable": {
        "cel.bind(l, [1], .l == [1])": "compile:undeclared",
        "[1].exists(x, .x == 1)": "compile:undeclared",
        "cel.bind(.x, 1, true)": "compile:undeclared",
        "cel.bind(device, 1, .device.driver == 'gpu.example.com' && device == 1)": True,
        "cel.bind(int, 1, .int == type(1) && int == 1)": "compile:program",
    },
    "%f and %e write no sign in front of zero, but in front of what is rounded to it": {
        "'%f'.format([-0.0]) == '0.000000' && '%e'.format([-0.0]) == '0.000000\u00d710\u2070\u2070'": True,
        "'%f'.format([-0.0000001]) == '-0.000000'": True,
        "'%s'.format([[-0.0]]) == '[-0.000000]' && '%s'.format([-0.0]) == '-0'": True,
    },
    "operators turn a wrapper into a bool": {
        "google.protobuf.BoolValue{value: true} == true && google.protobuf.BoolValue{value: true}": True,
    },
    "what only the type checker knows can be written, and fails when it is evaluated": {
        "kubernetes.DRADevice{driver: 'x'}.driver == 'x'": "other",
        "true || kubernetes.DRADevice{driver: 'x'}.driver == 'x'": True,
        "kubernetes.DRADevice{driver: 1}.driver == 'x'": "compile:type_mismatch",
        "kubernetes.DRADevice{model: 'x'}.driver == 'x'": "compile:undefined_field",
        "duration{seconds: 1} == duration('1s')": "other",
        "type(kubernetes.DRADevice{}) == kubernetes.DRADevice": "compile:program",
    },
    "the opposite of the smallest duration is no duration": {
        "timestamp('2000-01-01T00:00:00Z') - duration('-9223372036854775808ns') > timestamp(0)": "overflow",
        "timestamp('2000-01-01T00:00:00Z') + duration('-9223372036854775808ns') < timestamp(0)": True,
    },
    "texts are converted as by strconv and time of Go": {
        "cel.bind(text, '1_0', double(text)) == 10.0 && cel.bind(text, 'T', bool(text))": True,
        "cel.bind(text, ' 1', double(text)) == 1.0": "conversion",
        "cel.bind(text, '1e400', double(text)) > 1.0": "conversion",
        "cel.bind(text, '1 ', int(text)) == 1": "conversion",
        "cel.bind(text, '+1', int(text)) == 1": True,
        "cel.bind(text, '+1', uint(text)) == 1u": "conversion",
        "cel.bind(text, '-0', uint(text)) == 0u": "conversion",
        "cel.bind(text, '9999999h', duration(text)).getHours() == 9999999": "conversion",
        "cel.bind(text, '2024-02-29T00:00:00+24:00', timestamp(text)) == timestamp('2024-02-28T00:00:00Z')": True,
        "cel.bind(text, '2024-02-29t00:00:00z', timestamp(text)) > timestamp(0)": "conversion",
        "cel.bind(text, '2024-2-29T00:00:00Z', timestamp(text)) > timestamp(0)": "conversion",
        "cel.bind(text, '2024-02-29T23:30:60Z', timestamp(text)) > timestamp(0)": "conversion",
        "string(timestamp('2024-02-29T23:30:00+02:00')) == '2024-02-29T23:30:00+02:00'": True,
    },
    "a position after the end of a string is not found, and an empty string has no parts": {
        "'ab'.lastIndexOf('ab', 2) == -1 && 'ab'.lastIndexOf('ab', 1) == 0 && 'ab'.indexOf('b', 9) == -1": True,
        "''.split('') == [] && ''.split(',') == ['']": True,
    },
    "a host has brackets around all of it or nowhere": {
        "isURL('http://a[::1]') || isURL('http://a@b[::1]:80')": False,
        "isURL('http://[::1]') && isURL('http://a@[::1]:80')": True,
    },
    "classes of characters are named as in Go": {
        r"'a'.matches(r'^\p{Letter}\p{ letter }?[\p{lowercase_letter}]?$')": True,
        r"'a'.matches(r'\p{lu}') || 'a'.matches(r'\P{ASCII}') || 'a'.matches(r'\p{cntrl}')": False,
        r"'a'.matches(r'^\p{ASCII}$') && 'a'.matches(r'^[^\P{ascii}]$') && '\u03b1'.matches(r'\p{greek}')": True,
        r"'\u0378'.matches(r'^\p{Cn}\z') && '\u0378'.matches(r'\pC') && !'\u0378'.matches(r'\p{Assigned}')": True,
        r"'aA'.matches(r'^\p{LC}+$') && !'1'.matches(r'[\p{Cased_Letter}]') && '1'.matches(r'[\P{LC}]')": True,
        r"'a'.matches(r'\p{Old_Italic}')": "compile:invalid_literal",
        r"'a'.matches(r'\p{Klingon}')": "compile:invalid_literal",
        r"'p{Klingon}'.matches(r'\\p{Klingon}') || r'\p{x}'.matches(r'\Q\p{x}')": True,
    },
    "groups are named with ASCII": {
        "'a'.matches('(?P<1n>a)') && 'a'.matches('(?<n_>a)')": True,
        "'a'.matches('(?P<\u00e9>a)')": "compile:invalid_literal",
        "'a'.matches('(?P<>a)')": "compile:invalid_literal",
        r"'a'.matches(r'[\C]')": "compile:invalid_literal",
        r"'a'.find(r'\C') == ''": "compile:program",
    },
    "matches begin at characters, not at bytes": {
        r"'a\u00e9a'.matches(r'\B')": False,
        r"'a\u00e9'.findAll(r'\B') == [''] && '\u00e9a\u00e9'.findAll(r'\B').size() == 2": True,
        r"'a\u00e9b'.find(r'\B.') == '' && '\u00e9\u00e9b'.find(r'\B.') == '\u00e9'": True,
        r"'a\u00e9b'.findAll('') == ['', '', '', '']": True,
        r"'\u00e9b'.findAll(r'\B|b', 2) == ['', 'b']": True,
        r"'B'.matches(r'\\B') || 'a'.matches(r'\B)(')": "compile:invalid_literal",
    },
    "a literal has all characters except halves of surrogate pairs, written or escaped": {
        "'\u2028' == '\\u2028' && r'\u2028' == '\\u2028' && b'\u2028' == b'\\xe2\\x80\\xa8'": True,
        "true\u2028": "compile:syntax",
        "'\ud800' == ''": "compile:syntax",
        "b'\udfff' == b''": "compile:syntax",
        "'\\ud800' == ''": "compile:literal",
        "'\\U0000dfff' == ''": "compile:literal",
    },
    "an optional element has an optional type": {
        "[1, ?dyn(optional.of(1))].size() == 2": "compile:other",
        "[?dyn(optional.of(1))].size() == 1": "compile:other",
        "[1, 'a'].size() == 2 && {'a': 1, ?'b': device.attributes['a'].b}.size() == 1": "compile:other",
        "[1, 'a', ?dyn(1)].size() == 2": "compile:type_mismatch",
        "cel.bind(o, optional.of(quantity('1')), [?o].size() == 1 && {?'a': o}.size() == 1)": True,
        "'%s'.format([?dyn(1)]) == ''": "other",
    },
    "of a chain of && or ||, only the outermost call has the type of an error": {
        "(1 || true) == 1": "compile:type_mismatch",
        "(true || true || 1) == 1": "compile:type_mismatch",
        "true ? 1 : 2 || true || true": "compile:no_matching_overload",
        "true ? 1 : true || true || 2": "compile:type_mismatch",
        "true ? 1 : true && true && true && 2": "compile:no_matching_overload",
    },
}

CHANGED: dict[str, tuple[bool | str, bool | str]] = {
    "google.protobuf.BoolValue{value: true}": ("compile:wrong_output_type", True),
    "optional.of(google.protobuf.BoolValue{}).orValue(true)": ("compile:wrong_output_type", False),
    "cel.bind(o, optional.of(quantity('1')), [?o][0] == quantity('1'))": ("unsupported_value", True),
    "device.attributes['gpu.example.com'].`model` == 'A100'": ("compile:syntax", True),
    "device.attributes['gpu.example.com'].?`mo-del`.hasValue()": ("compile:syntax", False),
    "'`a`' == '\\u0060a\\u0060' // `": (True, True),
    "kubernetes.DRADevice{`driver`: 'x'}.driver == 'x'": ("compile:syntax", "other"),
    "`device`.driver == ''": ("compile:syntax", "compile:syntax"),
    "[].flatten(-1) == []": ("other", "other"),
    "lists.range(-1) == []": (True, "other"),
    "'abc'.indexOf('', 5) == 3": (False, True),
    "'abc'.indexOf('', -1) == -1": (True, "out_of_range"),
    "'abc'.lastIndexOf('', 5) == 3": (False, True),
    "'abc'.lastIndexOf('', -1) == -1": (True, "out_of_range"),
    "'abc'.lastIndexOf('') == 3": (True, True),
    "dyn('x').orValue('y') == 'x'": (True, "no_such_overload"),
    "dyn(1 / 0).orValue(1) == 1": ("div_by_zero", "div_by_zero"),
}
"""The answers of 1.36 and of 1.37, whose release of cel-go is another one."""

SYNTAX: dict[str, str] = {
    # a literal without a value is reported before the syntax error that follows it
    "[99999999999999999999, 3.?].size()": "literal",
    "'\\ud800' x": "literal",
    "@ 99999999999999999999": "syntax",
    "[1, 3.?].size()": "syntax",
    "[1].exists(x, x == 'x)": "syntax",
    # so is a macro with wrong arguments, even if the syntax error is inside of them
    "has(1 + * 2)": "macro",
    "has(device": "macro",
    "has(device.": "macro",
    "has(device.driver": "syntax",
    "has(a.b) && has(a) b": "macro",
    "[1].all(1, true x": "macro",
    "[1].exists(x, has(x), 1": "macro",
    "cel.bind(1, 2, 3 4": "macro",
    "x.bind(1, 2, 3 4": "syntax",
    ".has(a) 1": "syntax",
    # a reserved word that is used as a name explains it
    "let a = 1; a == 1": "reserved",
    "true && function() { return true }": "reserved",
    "true + .let in": "reserved",
    "let[1 2": "reserved",
    "device.let in": "syntax",
    "device.?let in": "syntax",
    "let.if{ 1": "syntax",
    # a keyword is no field, but the rest of the expression is read
    "{'in': 1}.in == 1": "syntax",
    "device.?true == optional.none()": "syntax",
    "google.protobuf.BoolValue{null: true}": "syntax",
    "has(device.attributes['x'].in) == 1": "macro",
}


def expressions() -> list[tuple[str, bool | str]]:
    compiled = [item for rule in EXACT.values() for item in rule.items()]
    return [*compiled, *((expression, f"compile:{kind}") for expression, kind in SYNTAX.items())]


@pytest.mark.parametrize(("expression", "expected"), expressions())
def test_rule(expression: str, expected: bool | str) -> None:
    assert answer(expression) == expected


@pytest.mark.parametrize("expression", CHANGED)
def test_answer_before_and_after_the_update_of_cel_go(expression: str) -> None:
    before, after = CHANGED[expression]
    assert answer(expression, environment=Environment("1.36")) == before
    assert answer(expression, environment=Environment("1.37")) == after


@pytest.mark.parametrize(
    ("expression", "environment", "expected"),
    [
        ("dyn(optional.of(true))", WITH_LISTS, True),
        ("dyn(optional.of(optional.of(false)))", WITH_LISTS, False),
        ("dyn(optional.none())", WITH_LISTS, "result_not_bool"),
        ("dyn(optional.of(1))", WITH_LISTS, "result_not_bool"),
        ("cel.bind(o, optional.of(quantity('1')), dyn(o))", WITH_LISTS, "result_not_bool"),
        ("dyn(optional.of(true))", WITHOUT_LISTS, "compile:wrong_output_type"),
        ("optional.of(true)", WITH_LISTS, "compile:wrong_output_type"),
    ],
)
def test_a_present_optional_counts_as_its_value(
    expression: str, environment: Environment, expected: bool | str
) -> None:
    assert answer(expression, DEVICE, environment) == expected


def test_exception_in_one_vector_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = {
        "category": "broken",
        "features": {"consumableCapacity": True, "listTypeAttributes": False},
        "envType": "stored",
        "expect": {"compile": {"ok": True}, "apiCreate": {"ok": True}, "outputType": "bool", "maxCost": "0"},
    }
    right = {"results": [{"match": True}], "actualCost": [0]}
    vectors = [
        {**vector, "id": "device", "expression": "true", "devices": "broken"},
        {**vector, "id": "expression", "expression": "'\ud800' == ''", "devices": "fine"},
        {**vector, "id": "fine", "expression": "true", "devices": "fine", "expect": {**vector["expect"], **right}},  # type: ignore[dict-item]
    ]
    devices = {"broken": [{"name": "a"}], "fine": [{"name": "a", "driver": "x"}]}
    (tmp_path / "devices.json").write_text(json.dumps(devices))
    (tmp_path / "vectors.jsonl").write_text("".join(json.dumps(vector) + "\n" for vector in vectors))
    monkeypatch.setattr("sys.argv", ["cel", str(tmp_path)])
    assert runner.main() == 1
    printed = capsys.readouterr().out
    assert "exception: KeyError('driver') here" in printed
    assert "total                1 of     3" in printed
