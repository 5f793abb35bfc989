# SPDX-License-Identifier: Apache-2.0
"""Nothing runs away: nesting, cost, size of data, patterns and numbers are bounded as in Kubernetes, or tighter."""

from typing import Any

import pytest

from dra_driver.scheduler.cel import COST_LIMIT, Environment, EvaluationError, compile_selector
from dra_driver.scheduler.cel.library import registry_of
from dra_driver.scheduler.cel.parse.grammar import lark_parser
from dra_driver.scheduler.cel.parse.prefix import first_invalid

from .support import DEVICE, DRIVER, answer


def nested(opening: str, inner: str, closing: str, levels: int) -> str:
    return opening * levels + inner + closing * levels


def doubling(first: str, next_value: str, last: str, levels: int = 60) -> str:
    """Bindings, each made of two of the one before."""
    bindings = [f"cel.bind(x0, {first}, "]
    bindings += [f"cel.bind(x{level}, {next_value.replace('$', f'x{level - 1}')}, " for level in range(1, levels)]
    return "".join(bindings) + last.replace("$", f"x{levels - 1}") + ")" * levels


@pytest.mark.parametrize(
    ("fits", "too_deep"),
    [
        (nested("(", "true", ")", 249), nested("(", "true", ")", 250)),
        (nested("[", "1", "]", 249) + ".size() == 1", nested("[", "1", "]", 250) + ".size() == 1"),
        (" + ".join(["1"] * 250) + " > 0", " + ".join(["1"] * 252) + " > 0"),
        (" && ".join(["true"] * 3000), nested("!(", "true", ")", 250)),
    ],
)
def test_nesting_is_limited_to_250_levels(fits: str, too_deep: str) -> None:
    compile_selector(fits).matches(DRIVER, DEVICE)
    assert answer(too_deep) == "compile:size_limit"


@pytest.mark.parametrize(
    "deep",
    [
        nested("[1].all(x, ", "true", ")", 240),
        nested("cel.bind(x, ", "true", ", x)", 240),
        "[1]" + ".map(x, x)" * 240 + ".size() == 1",
        "device.attributes" + "[?'a']" * 200 + ".hasValue()",
    ],
)
def test_macros_may_be_nested_as_deep(deep: str) -> None:
    selector = compile_selector(deep)
    assert selector.max_cost > 0
    assert selector.matches(DRIVER, DEVICE) in (True, False)


def test_cost_limit_ends_an_evaluation_inside_of_or() -> None:
    loop = "[0].all(x, lists.range(700).all(y, lists.range(700).all(z, z >= 0)))"
    with pytest.raises(EvaluationError) as caught:
        compile_selector(f"{loop} || true").matches(DRIVER, DEVICE)
    assert caught.value.kind == "cost_limit"
    assert caught.value.cost is not None
    assert caught.value.cost > COST_LIMIT
    assert compile_selector(loop).max_cost > COST_LIMIT


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (doubling("{1: 1}", "{$: $}", "$ == $"), "compile:size_limit"),
        (doubling("lists.range(1000)", "[dyn($), dyn($)]", "$ == $"), "cost_limit"),
        (doubling("lists.range(1000)", "[dyn($), dyn($)]", "'%s'.format([$]) == ''"), "cost_limit"),
        (doubling("lists.range(1000)", "[dyn($), dyn($)]", "$.flatten(100).size() == 1"), "cost_limit"),
        (doubling("[1]", "$ + $", "$ == $"), "cost_limit"),
        (doubling("'aaaaaaaa'", "$ + $", "$ == ''"), "cost_limit"),
        ("optional.of(1)" + ".optMap(x, x)" * 100 + ".hasValue()", "compile:size_limit"),
        ("'a'" + ".replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')" * 40 + " == ''", "cost_limit"),
        ("lists.range(1000000000000).size() == 1", "cost_limit"),
        ("[1, 2].flatten(-9223372036854775808) == []", "cost_limit"),
        ("'" + "a" * 5000 + "'.matches('(a*)*(a*)*b')", False),
        ("'a'.matches('((a{1000}){1000}){1000}')", "compile:invalid_literal"),
        ("'%.999999999f'.format([1.0]) == ''", False),
        ("quantity('1e999999999').compareTo(quantity('1e-999999999')) > 0", True),
        ("quantity('1e999999999').add(quantity('1')).isInteger()", "overflow"),
        ("quantity('" + "9" * 9000 + "').isInteger()", False),
        ("'" + "x" * 100_001 + "' == ''", "compile:size_limit"),
        ("9" * 5000 + " > 0", "compile:literal"),
    ],
)
def test_small_expressions_cannot_ask_for_much(expression: str, expected: bool | str) -> None:
    assert answer(expression) == expected


class CountingParser:
    """The parser, with the number of characters that it has read."""

    def __init__(self) -> None:
        self.characters = 0

    def parse(self, text: str) -> Any:
        self.characters += len(text)
        return lark_parser().parse(text)


@pytest.mark.parametrize("text", ["[1].all(x, " * 200 + "x + " * 1800, nested("has(", "1" + " + 1" * 1500, "", 240)])
def test_macros_in_front_of_a_syntax_error_are_read_within_a_limit(text: str) -> None:
    parser = CountingParser()
    macros = registry_of(Environment()).macros
    assert first_invalid(text, list(lark_parser().lex(text)), parser, macros) is None
    assert 0 < parser.characters <= 20_000
