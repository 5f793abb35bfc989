# SPDX-License-Identifier: Apache-2.0
"""Errors point at the place, say what was expected, and name what is nearest."""

import pytest

from dra_driver.scheduler.cel import CelError, PublishedNames, compile_selector

from .support import DEVICE, DRIVER, answer


def error_of(expression: str) -> CelError:
    with pytest.raises(CelError) as caught:
        compile_selector(expression).matches(DRIVER, DEVICE)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "kind", "column", "says"),
    [
        ("device.driver ==", "syntax", 17, "expected a value"),
        ("(true", "syntax", 6, "expected ')'"),
        ("device.driver == 'a' and true", "syntax", 22, "unexpected 'and'"),
        ("true @ false", "syntax", 6, "unexpected character '@'"),
        ("device.drivr == 'a'", "undefined_field", 7, "there are allowMultipleAllocations, attributes, capacity"),
        ("'a'.startWith('b')", "undeclared", 14, "did you mean 'startsWith'?"),
        ("devices.driver == 'a'", "undeclared", 1, "undeclared reference to 'devices'"),
        ("device.driver == 1", "no_matching_overload", 15, "(string, int)"),
        ("['a', 1].size() == 2", "type_mismatch", 7, "use dyn()"),
        ("let == 1", "reserved", 1, "reserved identifier: let"),
        ("99999999999999999999 > 0", "literal", 1, "64 bits"),
        ("has(device)", "macro", 5, "has(a.b)"),
        ("device &", "syntax", 8, "unexpected character '&'"),
        ("has(device) &", "macro", 5, "has(a.b)"),
        ("device.in == 1", "syntax", 8, "write ['in'] instead of .in"),
        ("if device.driver == 'a' then true", "reserved", 1, "reserved identifier: if"),
        ("'a'.matches('[')", "invalid_literal", 13, "matches"),
        ("'%d'.format(['a']) == ''", "format", 14, "integers"),
        ("1 / 0 == 1", "div_by_zero", 3, "division by zero"),
        ("'abc'.substring(9) == ''", "out_of_range", 16, "9"),
    ],
)
def test_an_error_has_kind_place_and_reason(expression: str, kind: str, column: int, says: str) -> None:
    error = error_of(expression)
    assert (error.kind, error.offset) == (kind, column - 1)
    assert says in error.message
    first, excerpt, caret = str(error).split("\n")
    assert f"(column {column})" in first
    assert excerpt.strip() == expression
    assert caret.index("^") == excerpt.index(expression[0]) + column - 1


def test_a_place_behind_line_breaks_is_shown_on_its_line() -> None:
    assert str(error_of("true &&\n  device.foo")).split("\n") == [
        "undefined field 'foo' (there are allowMultipleAllocations, attributes, capacity, driver) (line 2, column 9)",
        "    device.foo",
        "          ^",
    ]


def test_a_long_line_is_cut_around_the_place() -> None:
    excerpt = str(error_of(" && ".join(["true"] * 100 + ["nope"] + ["true"] * 100))).split("\n")
    assert all(len(line) < 120 for line in excerpt)
    assert excerpt[1][excerpt[2].index("^") :].startswith("nope")


def test_a_missing_attribute_is_told_with_the_nearest_one_of_the_device() -> None:
    error = error_of("device.attributes['gpu.example.com'].modl == 'A100'")
    assert (error.kind, error.offset) == ("no_such_key", 36)
    assert "did you mean 'model'?" in error.message
    assert "did you mean 'gpu.example.com'?" in error_of("device.attributes['gpu.exampel.com'].model == 'A100'").message
    assert "did you mean 'memory'?" in error_of("device.capacity['gpu.example.com'].memroy.isInteger()").message


def test_names_that_no_device_has_are_found_without_evaluating() -> None:
    names = PublishedNames.of([(DRIVER, DEVICE)])
    selector = compile_selector(
        "device.attributes['gpu.example.com'].model == 'A100' || has(device.attributes['gpu.example.com'].sharde)"
        " || device.attributes['net.example.com'].speed == 1"
    )
    (unknown,) = selector.unknown_names(names)
    assert unknown.message == "no device has attribute 'sharde' in domain gpu.example.com; did you mean 'shared'?"
    assert unknown.offset == selector.expression.index("has(") + len("has")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.attributes['gpu.example.com'].shared", True),
        ("device.attributes['gpu.example.com'].model", "result_not_bool"),
        ("device.driver", "compile:wrong_output_type"),
        ("{'a': 1}['b'] == 1 || true", True),
        ("true || device.attributes['gpu.example.com'].none == 1", True),
        ("device.attributes['gpu.example.com'].none == 1 && true", "no_such_key"),
    ],
)
def test_results_must_be_bools_and_errors_may_be_absorbed(expression: str, expected: bool | str) -> None:
    assert answer(expression) == expected
