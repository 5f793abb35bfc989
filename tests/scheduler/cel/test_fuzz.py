# SPDX-License-Identifier: Apache-2.0
"""Random expressions, well-formed and mangled, end in an answer or in one of our own errors; nothing else escapes."""

import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.scheduler.cel import CelError, Environment, compile_selector
from tests.support import examples

from .generator import Grammar, mangled
from .support import DEVICE, DRIVER, LISTS
from .test_libraries import LIBRARIES

EXPRESSIONS: Final = examples(10_000)
PARTS: Final = 4
DEPTH: Final = 4

LITERALS: Final = (
    *("true", "false", "null", "0", "1", "-1", "9223372036854775807", "2u", "1.5", "-0.0", "1e308", "''", "'a'"),
    *("b'\\xff'", "'\\U0001F600'", "[]", "{}", "duration('1h')", "timestamp(0)", "quantity('1.5Gi')", "int", "x", "y"),
    *("semver('1.2.3')", "ip('::1')", "cidr('10.0.0.0/8')", "url('/p')", "format.uuid()", "optional.none()"),
    *("device", "device.driver", "device.attributes", "device.capacity", "double('NaN')", "google.protobuf.Empty{}"),
    *("device.attributes['gpu.example.com']", "device.capacity['gpu.example.com'].memory"),
    *("device.attributes['gpu.example.com'].model", "device.attributes['gpu.example.com'].count"),
)
OPERATORS: Final = ("&&", "||", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "in")
METHODS: Final = (
    *("size", "contains", "startsWith", "matches", "find", "findAll", "format", "split", "replace", "join", "charAt"),
    *("substring", "indexOf", "lastIndexOf", "trim", "sum", "min", "max", "sort", "distinct", "flatten", "slice"),
    *("reverse", "first", "last", "hasValue", "value", "orValue", "or", "add", "sub", "compareTo", "isGreaterThan"),
    *("isInteger", "asInteger", "major", "family", "masked", "containsIP", "getQuery", "getHost", "validate"),
    *("getHours", "getFullYear", "includes", "isSorted", "unwrapOpt", "check"),
)
FUNCTIONS: Final = (
    *("size", "int", "uint", "double", "string", "bytes", "bool", "type", "dyn", "duration", "timestamp", "quantity"),
    *("semver", "ip", "cidr", "url", "isURL", "sign", "has", "lists.range", "sets.contains", "strings.quote"),
    *("optional.of", "optional.ofNonZeroValue", "format.named", "nope"),
)
MACROS: Final = ("all", "exists", "exists_one", "map", "filter", "sortBy", "optMap", "optFlatMap")
TWO_VARIABLES: Final = ("all", "exists", "existsOne", "transformList", "transformMap", "transformMapEntry")


ARGUMENTS: Final = ("", *("<any>",) * 3, *("<any>, <any>",) * 2, "<any>, <any>, <any>")
AGGREGATES: Final = (
    *(f"[{arguments}]" for arguments in ARGUMENTS),
    *("{<any>: <any>}", "[?<any>]", "!(<any>)", "-<any>"),
)
GRAMMAR: Final = Grammar(
    literals={"any": LITERALS},
    patterns={
        "any": (
            *(tuple(f"<any> {operator} <any>" for operator in OPERATORS),) * 3,
            *(tuple(f"<any>.{method}({arguments})" for method in METHODS for arguments in ARGUMENTS),) * 2,
            tuple(f"{function}({arguments})" for function in FUNCTIONS for arguments in ARGUMENTS),
            tuple(f"<any>.{macro}(x, <any>)" for macro in MACROS),
            tuple(f"<any>.{macro}(x, y, <any>)" for macro in TWO_VARIABLES),
            ("cel.bind(x, <any>, <any>)",),
            ("(<any> ? <any> : <any>)",),
            ("<any>[<any>]", "<any>[?<any>]"),
            ("dyn(<any>).a", "dyn(<any>).?a", "dyn(<any>).b.c"),
            AGGREGATES,
        )
    },
)


def run(text: str, environment: Environment) -> str:
    """How far it came."""
    try:
        selector = compile_selector(text, environment)
    except CelError as refusal:
        check(refusal)
        return "refused"
    assert selector.max_cost >= 0
    assert selector.reads is not None
    reached = "failed"
    for device in (DEVICE, LISTS):
        try:
            assert selector.matches(DRIVER, device) in (True, False)
            reached = "answered"
        except CelError as failure:
            check(failure)
    return reached


def check(error: CelError) -> None:
    assert error.offset is None or 0 <= error.offset <= len(error.expression)
    assert error.message in str(error)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_expressions_end_in_an_answer_or_an_error_of_ours(part: int) -> None:
    random_source = random.Random(part)
    known = [text for cases in LIBRARIES.values() for text in cases]
    environments = (Environment(), Environment("1.36", list_type_attributes=True), Environment("1.32"))
    reached = set()
    for _ in range(EXPRESSIONS // PARTS):
        text = GRAMMAR.expression(random_source, "any", random_source.randint(1, DEPTH))
        if random_source.random() < 0.3:
            text = f"{text} {random_source.choice(('==', '||', '&&'))} {random_source.choice(known)}"
        if random_source.random() < 0.2:
            text = mangled(random_source, text)
        reached.add(run(text, random_source.choice(environments)))
    assert reached == {"refused", "failed", "answered"}


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=60) | st.text("abx01 .,:?!()[]{}'\"\\&|=<>+-*/%\n", max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    assert run(text, Environment()) in ("refused", "failed", "answered")
