# SPDX-License-Identifier: Apache-2.0
"""Random expressions have the value that cel-cpp computes, except where a rule of Kubernetes says otherwise.

Kubernetes uses cel-go. The golden vectors contain its answers, but only for their expressions. cel-cpp is another
implementation by the same authors (the package cel-expr-python), and answers any expression. `RULES` are the known
differences: options that Kubernetes sets, and places where one of the two implementations leaves cel-spec.

The grammar has what both know. It leaves out forms of texts that cel-spec does not define, because a difference there
says nothing: string() of doubles and durations, `%s` and `%e` of doubles, and fractions of seconds. It also leaves out
the order of the entries of a map, and cel.bind(), whose variables cel-cpp 0.1.3 mixes up in expressions with macros.
Texts that are not UTF-8 are left out because cel-expr-python 0.1.3 crashes on some of them.

CEL_SEED=<number> tries other expressions, and CEL_EXPRESSIONS=<number> more of them.
"""

import os
import random
import re
from dataclasses import dataclass
from typing import Final, Literal

import pytest

from dra_driver.scheduler.cel import CompileError, Environment, EvaluationError, compile_selector
from tests.support import examples

from .generator import Grammar, mangled
from .support import DEVICE, DRIVER

pytest.importorskip("cel_expr_python", reason="cel-expr-python has no wheel for this platform")
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

SEED: Final = int(os.environ.get("CEL_SEED", "0"))
EXPRESSIONS: Final = int(os.environ.get("CEL_EXPRESSIONS", examples(6_000)))
PARTS: Final = 4
DEPTH: Final = 4
COMPARED: Final = 0.5
"""The smallest share of the expressions whose values are compared."""

NUMBERS: Final = ("int", "uint", "double")
ORDERED: Final = (*NUMBERS, "string", "bytes", "bool", "duration", "timestamp")
CONTAINERS: Final = ("ints", "strings", "map")
ELEMENTS: Final = {"ints": "int", "strings": "string", "map": "string"}
FIELDS: Final = ("FullYear", "Month", "Date", "DayOfMonth", "DayOfWeek", "DayOfYear", "Hours", "Minutes", "Seconds")
ZONES: Final = ("", "'+01:30'", "'-08:00'", "'Europe/Berlin'", "'UTC'", "<string>")
DEVICE_ATTRIBUTES: Final = "device.attributes['gpu.example.com']"


def any_kind(kind: str) -> tuple[str, ...]:
    """Patterns for expressions of any kind."""
    return (
        f"(<bool> ? <{kind}> : <{kind}>)",
        f"[<int>].map(x, <{kind}:x=int>)[0]",
        f"[<string>].map(y, <{kind}:y=string>)[0]",
    )


def converted(function: str) -> str:
    """A pattern for a conversion that is evaluated for the device, because its argument is not a constant."""
    return f"[<{function}_text>].map(z, {function}(z))[0]"


TEXTS: Final = {
    "int_text": (
        *("'0x1F'", "'+1'", "'1e3'", "'1_000'", "'9223372036854775808'", "'-9223372036854775808'", "'007'", "''"),
    ),
    "uint_text": ("'0x1F'", "'1u'", "'18446744073709551616'", "'18446744073709551615'"),
    "double_text": ("'1e3'", "'.5'", "'5.'", "'+1.5'", "'inf'", "'-Inf'", "'NaN'", "'0x1p-2'", "'1e'", "'1,5'"),
    "bool_text": ("'False'", "'TRUE'", "'1'", "'0'", "'yes'", "'tRue'", "''"),
    "duration_text": ("'1h30m'", "'+1h'", "'.5h'", "'1.h'", "'1d'", "'-1m'", "'1'", "'0'", "'1h '", "'1e2s'"),
    "timestamp_text": (
        *("'2024-02-29T23:30:00+14:00'", "'2024-02-30T00:00:00Z'", "'2024-02-29T24:00:00Z'", "'10000-01-01T00:00:00Z'"),
        *("'2024-02-29 23:30:00Z'", "'2024-02-29T23:30Z'", "'0000-01-01T00:00:00Z'"),
        "'2024-02-29T23:30:00'",
    ),
    "zone": (
        *("'01:00'", "'-23:59'", "'+24:00'", "'America/New_York'", "'utc'", "'EST'", "''", "'Z'", "'1:00'"),
        *("'Asia/Kathmandu'", "'+05:45'", "'05'", "'Europe/berlin'"),
    ),
    "regex": (
        *("'[a-z]+'", r"r'^\d{1,3}$'", "'a|b'", "'(a)(b)?'", "'(?i)A'", "'a**'", "'(?P<n>a)'", r"r'\pL'", "'a{2,1}'"),
        *("'.'", "'^$'", r"r'\bab'", "'[[:alpha:]]'", r"r'\z'", "'(?s).'", "'(?=a)'", r"r'(a)\1'", "'a{1001}'"),
        *("'(?m)^b'", "'[^a]'", r"'\u00e9'", r"r'\x{e9}'", r"'[\u00df-\u00ef]'", r"r'\w'", r"r'\S+'", r"r'\Q.\E'"),
        *("'a+?'", "'a++'"),
    ),
}
"""Texts close to the border of what is accepted. Go's own additions are in `test_fidelity`."""

WRONG_TYPES: Final = (
    *("<int> + <string> == <int>", "<int> + <uint> == <int>", "size(<int>) == 0", "<string>[0] == ''"),
    *("<ints>.all(x, <int:x=int>)", "<int> in <int>", "<string>.size(<int>) > 0", "<string>.contains(<int>)"),
    *("<int> == <string>", "<int> && <bool>", "-<string> == ''", "<ints>.exists(<int>, true)", "nope == <int>"),
    *("<int>.a == 0", "<int>.all(x, true)", "has(<int>)", "<ints>.nope()", "<int> < <bool>"),
    *("dyn(<int>) + <string> == ''", "dyn(<string>).contains(dyn(<int>))", "dyn(<int>) && <bool>"),
    *("<bool> || dyn(<int>)", "dyn(<int>)[0] == 0", "dyn(<ints>).a == 0", "dyn(<int>) < dyn(<string>)"),
    *(
        "dyn(<ints>)['a'] == 0",
        "dyn(<map>)[<int>] == 0",
        "dyn(<int>).all(x, true)",
        "!dyn(<int>)",
        "-dyn(<string>) == 0",
    ),
)
"""Expressions that the type checker or the evaluation refuses."""

GRAMMAR: Final = Grammar(
    literals={
        **TEXTS,
        "bool": ("true", "false", f"{DEVICE_ATTRIBUTES}.shared", f"has({DEVICE_ATTRIBUTES}.model)"),
        "int": (
            *("0", "1", "2", "-1", "7", "1000", "0x1F", "9223372036854775807", "-9223372036854775808"),
            f"{DEVICE_ATTRIBUTES}.count",
        ),
        "uint": ("0u", "1u", "2u", "0x10u", "18446744073709551615u"),
        "double": (
            *("0.0", "-0.0", "1.5", "-2.5", "0.1", ".5", "1e308", "1e21", "1E-7", "9007199254740993.0"),
            *("double('NaN')", "double('-Infinity')"),
        ),
        "string": (
            *("''", "'a'", '"ab"', "'a,b'", "'\u00e9'", "'\U0001f600'", "'B'", "' a '", "'1'", "'-1'", "'1.5'", "'1h'"),
            *("'true'", "'2024-02-29T23:30:00Z'", "'\\n'", "'%s'", "'\u00df'", "'Infinity'", "r'\\n'", "'''a'b'''"),
            *("'\\x41\\101\\u00e9\\U0001F600'", '"a\\"b"', "'[a'", "'^a'", f"{DEVICE_ATTRIBUTES}.model"),
        ),
        "bytes": ("b''", "b'a'", "b'\\xff'", "b'\\303\\251'", "b'\u00e9'"),
        "duration": ("duration('1h')", "duration('-90s')", "duration('0s')", "duration('1h1m')"),
        "timestamp": (
            *("timestamp(0)", "timestamp('2024-02-29T23:30:00Z')", "timestamp('0001-01-01T00:00:00Z')"),
            *("timestamp('9999-12-31T23:59:59Z')", "timestamp('2024-02-29T23:30:00+02:00')"),
        ),
        "ints": ("[]", "[1]", "[1, 2, 3]", "[3, 1, 2]"),
        "strings": ("[]", "['a']", "['a', 'b', '']"),
        "map": ("{}", "{'a': 1}", "{'a': 1, 'b': 2}"),
        "type": (
            *("int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "type"),
            *("type(duration('1s'))", "type(optional.none())"),
        ),
        "optional": ("optional.none()", "optional.of(1)"),
        "dyn": ("null", "dyn(1)", "dyn('a')", "dyn([])", f"{DEVICE_ATTRIBUTES}.none", "device.attributes['none'].none"),
    },
    patterns={
        "bool": (
            tuple(f"<{kind}> {operator} <{kind}>" for kind in (*ORDERED, *CONTAINERS) for operator in ("==", "!=")),
            ("<dyn> == <dyn>", "<dyn> != <dyn>", "type(<dyn>) == <type>", "<type> != <type>"),
            tuple(f"<{kind}> {operator} <{kind}>" for kind in ORDERED for operator in ("<", "<=", ">", ">=")),
            tuple(
                f"<{left}> {operator} <{right}>" for left in NUMBERS for right in NUMBERS for operator in ("<", ">=")
            ),
            tuple(
                f"dyn(<{left}>) {operator} <{right}>"
                for left in (*NUMBERS, "dyn")
                for right in (*NUMBERS, "string")
                for operator in ("==", "<", ">=")
            ),
            ("<duration> < duration('1.5s')", "<timestamp> + duration('1ns') > <timestamp>"),
            ("<bool> && <bool>", "<bool> || <bool>", "!(<bool>)", "!<bool>", "(<bool>) == <bool>"),
            (
                "<int> in <ints>",
                "<string> in <strings>",
                "<string> in <map>",
                "dyn(<double>) in <ints>",
                "has(<map>.a)",
            ),
            tuple(f"<string>.{method}(<string>)" for method in ("contains", "startsWith", "endsWith", "matches")),
            tuple(
                f"<{container}>.{macro}(x, <bool:x={element}>)"
                for container, element in ELEMENTS.items()
                for macro in ("all", "exists", "exists_one")
            ),
            ("<string>.matches(<regex>)",),
            (converted("bool"), "bool(<string>)", "<optional>.hasValue()", "<optional> == <optional>"),
            WRONG_TYPES,
            any_kind("bool"),
        ),
        "int": (
            tuple(f"<int> {operator} <int>" for operator in "+-*/%"),
            ("-<int>", "-(<int>)", "(<int>) * (<int>)"),
            tuple(f"int(<{kind}>)" for kind in (*NUMBERS, "string", "timestamp")),
            tuple(f"size(<{kind}>)" for kind in ("string", "bytes", *CONTAINERS)),
            tuple(f"<{kind}>.size()" for kind in ("string", "bytes", *CONTAINERS)),
            ("<string>.indexOf(<string>)", "<string>.lastIndexOf(<string>)", "<string>.indexOf(<string>, <int>)"),
            ("<map>.filter(x, <bool:x=string>).size()",),
            (converted("int"), "[<zone>].map(z, <timestamp>.getMinutes(z))[0]"),
            ("<ints>[<int>]", "<map>[<string>]", "<map>.a", "<optional>.value()", "<optional>.orValue(<int>)"),
            tuple(f"<timestamp>.get{field}({zone})" for field in (*FIELDS, "Milliseconds") for zone in ZONES),
            tuple(f"<duration>.get{field}()" for field in ("Hours", "Minutes", "Seconds")),
            any_kind("int"),
        ),
        "uint": (
            tuple(f"<uint> {operator} <uint>" for operator in "+-*/%"),
            (converted("uint"), *(f"uint(<{kind}>)" for kind in (*NUMBERS, "string"))),
            any_kind("uint"),
        ),
        "double": (
            tuple(f"<double> {operator} <double>" for operator in "+-*/"),
            (converted("double"), "-<double>", *(f"double(<{kind}>)" for kind in (*NUMBERS, "string"))),
            any_kind("double"),
        ),
        "string": (
            ("<string> + <string>",),
            tuple(f"string(<{kind}>)" for kind in ("int", "uint", "string", "bytes", "bool", "timestamp")),
            ("<string>.charAt(<int>)", "<string>.substring(<int>)", "<string>.substring(<int>, <int>)"),
            ("<string>.replace(<string>, <string>)", "<string>.replace(<string>, <string>, <int>)"),
            (
                "<string>.lowerAscii()",
                "<string>.upperAscii()",
                "(' ' + <string> + '\\t').trim()",
                "strings.quote(<string>)",
            ),
            ("<strings>.join()", "<strings>.join(<string>)", "<strings>[<int>]"),
            tuple(
                f"'{verb}'.format([<{kind}>])"
                for verb in ("%s", "%d", "%b", "%o", "%x", "%X")
                for kind in ("int", "uint")
            ),
            tuple(f"'%s'.format([<{kind}>])" for kind in ("string", "bool", "type")),
            ("'%x'.format([<string>])", "'%s %d%%'.format([<string>, <int>])"),
            any_kind("string"),
        ),
        "bytes": (("<bytes> + <bytes>",), ("bytes(<string>)", "bytes(<bytes>)"), any_kind("bytes")),
        "duration": (
            ("<duration> + <duration>", "<duration> - <duration>", "<timestamp> - <timestamp>", "-(<duration>)"),
            (converted("duration"), "duration(<string>)", "duration(<duration>)"),
            any_kind("duration"),
        ),
        "timestamp": (
            ("<timestamp> + <duration>", "<duration> + <timestamp>", "<timestamp> - <duration>"),
            (converted("timestamp"), "timestamp(<int>)", "timestamp(<string>)", "timestamp(<timestamp>)"),
            any_kind("timestamp"),
        ),
        "ints": (
            ("[<int>]", "[<int>, <int>]", "[?<optional>]", "[<int>, ?<optional>]", "<ints> + <ints>"),
            ("<ints>.map(x, <int:x=int>)", "<ints>.filter(x, <bool:x=int>)", "<strings>.map(x, <int:x=string>)"),
            ("<ints>.map(x, <bool:x=int>, <int:x=int>)",),
            any_kind("ints"),
        ),
        "strings": (
            ("[<string>]", "[<string>, <string>]", "<strings> + <strings>"),
            ("<strings>.map(x, <string:x=string>)", "<strings>.filter(x, <bool:x=string>)"),
            ("<string>.split(<string>)", "<string>.split(<string>, <int>)"),
            any_kind("strings"),
        ),
        "map": (
            ("{<string>: <int>}", "{<string>: <int>, <string>: <int>}", "{?<string>: <optional>}"),
            any_kind("map"),
        ),
        "type": (tuple(f"type(<{kind}>)" for kind in (*ORDERED, *CONTAINERS, "dyn", "optional")),),
        "optional": (
            ("optional.of(<int>)", "optional.ofNonZeroValue(<int>)", "<map>.?a", "<map>[?<string>]", "<ints>[?<int>]"),
            ("<optional>.or(<optional>)", "<optional>.optMap(x, <int:x=int>)"),
            ("<optional>.optFlatMap(x, <optional:x=int>)",),
        ),
        "dyn": (
            tuple(f"dyn(<{kind}>)" for kind in (*ORDERED, *CONTAINERS)),
            ("{'a': <dyn>}.a", "[<dyn>][<int>]"),
        ),
    },
)
NAN: Final = "double('nan')"
RESULTS: Final = ("bool", "bool", "bool", *NUMBERS, "string", "bytes", *CONTAINERS)
"""The kinds whose values can be written as literals."""


@dataclass(frozen=True)
class Answer:
    """What an implementation says. `detail` is the error, or the value as an expression."""

    stage: Literal["refused", "failed", "value"]
    detail: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.detail}"


@dataclass(frozen=True)
class Rule:
    """A known difference. The patterns are regular expressions for the answers, as texts."""

    reason: str
    source: str
    cel_cpp: str = ""
    ours: str = ""
    expression: str = ""

    def explains(self, expression: str, theirs: Answer, ours: Answer) -> bool:
        return bool(
            re.search(self.expression, expression)
            and re.search(self.cel_cpp, str(theirs), re.DOTALL)
            and re.search(self.ours, str(ours))
        )


COMPILE: Final = "k8s.io/dynamic-resource-allocation cel/compile.go"
BASE: Final = "k8s.io/apiserver pkg/cel/environment/base.go"
EMPTY: Final = r"\[\]|\{\}|optional\.none\(\)"
RULES: Final = (
    Rule(
        "calls on constants are evaluated at compile time, and an error there refuses the expression",
        f"{COMPILE}: cel.EvalOptions(cel.OptOptimize)",
        cel_cpp="^(failed|value)",
        ours="^refused: program",
    ),
    Rule(
        "literals of durations, timestamps and regular expressions must be valid",
        f"{BASE}: cel.ASTValidators",
        cel_cpp="^(failed|value)",
        ours="^refused: invalid_literal",
    ),
    Rule(
        "the elements of a literal list or map have one type",
        f"{BASE}: cel.HomogeneousAggregateLiterals",
        cel_cpp="^(failed|value)",
        ours=r"^refused: type_mismatch .* use dyn\(\) for mixed types",
    ),
    Rule(
        "a literal format string must fit its arguments",
        "cel-go ext/formatting.go: stringFormatValidator",
        cel_cpp="^(failed|value)",
        ours="^refused: format",
    ),
    Rule(
        "numbers of different types can be ordered without dyn()",
        f"{BASE}: cel.CrossTypeNumericComparisons",
        cel_cpp=r"^refused: .* '_(<|<=|>|>=)_' applied to '\((int|uint|double), (int|uint|double)\)'",
    ),
    Rule(
        "NaN cannot be ordered; cel-spec says that comparisons with it are false",
        "cel-go common/types/double.go: Compare",
        expression="NaN|Infinity|inf|/",
        cel_cpp="^(failed|value)",
        ours="^failed",
    ),
    Rule(
        "a position after the end of the string is not found; cel-spec says that it is an error",
        "cel-go ext/strings.go: indexOfOffset; its conformance tests skip indexof_out_of_range",
        expression=r"indexOf\(.*,",
        cel_cpp="^failed: .*index out of range",
    ),
    Rule(
        "a repeated key overwrites the value; cel-spec says that it is an error",
        "cel-go interpreter/interpretable.go: evalMap; its conformance tests skip map_value_repeat_key",
        cel_cpp="^failed: .*duplicate key in map",
    ),
    Rule(
        "a timestamp keeps the time zone of its text; cel-spec says that string() writes UTC",
        "cel-go common/types/timestamp.go: ConvertToType",
        expression=r"\+(02|14):00",
        cel_cpp="^value",
        ours="^(value|failed)",
    ),
    Rule(
        "texts of timestamps have the form of RFC 3339, whose years have four digits",
        "cel-go common/types/string.go: time.Parse with time.RFC3339",
        cel_cpp="^value",
        ours="^failed: conversion .* is not a valid timestamp",
    ),
    Rule(
        "the type of an empty literal is that of its first use, and the overloads are tried in the order of cel-go",
        "cel-go checker/checker.go: resolveOverload; common/stdlib/standard.go",
        expression=EMPTY,
        cel_cpp="^(failed|value)",
        ours="^refused: (no_matching_overload|type_mismatch)",
    ),
    Rule(
        "the type of an empty literal is that of its first use, and the overloads are tried in the order of cel-go",
        "cel-go checker/checker.go: resolveOverload; common/stdlib/standard.go",
        expression=EMPTY,
        cel_cpp="^refused: .*(found no matching overload|cannot be the range of a comprehension)",
        ours="^(failed|value)",
    ),
    Rule(
        "the value of an attribute has the type any, and macros cannot loop over it; for cel-cpp it is dyn here",
        f"{COMPILE}: apiservercel.AnyType",
        expression=DEVICE_ATTRIBUTES.replace("[", r"\["),
        cel_cpp="^(failed|value)",
        ours="^refused: bad_range",
    ),
    Rule(
        "an empty string has no parts if it is split by an empty string; for cel-cpp it has one",
        "cel-go ext/strings.go: split, with strings.Split of Go",
        expression=r"\.split\(",
        cel_cpp="^value",
        ours="^(value|failed: out_of_range)",
    ),
    Rule(
        "nothing is in an empty literal list, and the element is not evaluated",
        "cel-go interpreter/decorators.go: maybeOptimizeSetMembership",
        expression=r"\bin\b.*\[\]",
        cel_cpp="^failed",
        ours="^value",
    ),
    Rule(
        "a variable of a macro may have a dot in front",
        "cel-go parser/macro.go: extractIdent",
        expression=r"\w\(\.[a-z],",
        cel_cpp="^refused: .*must be a simple identifier",
    ),
    Rule(
        "a raw string may end with a backslash; cel-cpp cannot read its own token",
        "cel-spec doc/langdef.md: STRING_LIT; cel-cpp internal/strings.cc",
        expression=r"\\['\"]",
        cel_cpp="^refused: .*Invalid string literal: String must end with",
    ),
    Rule(
        "numbers in texts have no space around them",
        "cel-go common/types/string.go: strconv.ParseInt, ParseUint, ParseFloat",
        cel_cpp="^(failed|value)",
        ours=r"^failed: conversion .* '(\\n|\\t| ).*' is not a valid u?int",
    ),
    Rule(
        "hours and minutes of an offset are whole numbers",
        "cel-go common/types/timestamp.go: timeZone",
        cel_cpp="^(failed|value)",
        ours="^failed: other .* is not an offset from UTC",
    ),
    Rule(
        "a domain that the device does not have is an empty map",
        f"{COMPILE}: newStringInterfaceMapWithDefault",
        cel_cpp='^failed: .*Key not found in map : "(?!count|model|shared)',
    ),
    Rule(
        "a device is an object, and has no fields but its own; for cel-cpp it is a map here",
        f"{COMPILE}: deviceType",
        cel_cpp="^(failed|value)",
        ours="^refused: undefined_field",
    ),
    Rule(
        "substring() may end at the end of the string; cel-cpp refuses this, against cel-spec",
        "cel-cpp common/values/string_value.cc: SubstringImpl",
        expression=r"substring\(",
        cel_cpp="^failed: .*<start> or <end> is greater than <string>.size",
    ),
)


class Oracle:
    """cel-cpp, with the libraries that Kubernetes also has and a variable for the device."""

    def __init__(self) -> None:
        extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings()]
        variables = {"device": cel.Type("map<string, map<string, map<string, dyn>>>")}
        self._environment = cel.NewEnv(variables=variables, extensions=extensions)
        attributes = {name: DEVICE.attributes[name] for name in ("model", "count", "shared")}
        self._data = {"device": {"attributes": {DRIVER: attributes}}}

    def answer(self, expression: str) -> Answer | None:
        """None for values that Python or a literal cannot show: types, optionals and texts that are not UTF-8."""
        try:
            compiled = self._environment.compile(expression)
        except RuntimeError as error:
            return Answer("refused", str(error))
        try:
            value = compiled.eval(data=self._data)
        except RuntimeError as error:
            return Answer("failed", str(error))
        try:
            if value.type().name() == "ERROR":
                return Answer("failed", value.value())
            return Answer("value", literal(value))
        except (TypeError, ValueError):
            return None


def text(characters: str) -> str:
    """A literal for a string."""
    return "'" + "".join(f"\\U{ord(character):08x}" for character in characters) + "'"


def literal(value: cel.Value) -> str:
    """An expression for the value."""
    content = value.value()
    match value.type().name():
        case "NULL":
            return "null"
        case "BOOL":
            return "true" if content else "false"
        case "INT":
            return f"({content})"
        case "UINT":
            return f"{content}u"
        case "DOUBLE":
            return f"double('{content!r}')"
        case "STRING":
            return text(content)
        case "BYTES":
            return "b'" + "".join(f"\\x{byte:02x}" for byte in content) + "'"
        case name if name.startswith("LIST"):
            return "[" + ", ".join(f"dyn({literal(item)})" for item in content) + "]"
        case name if name.startswith("MAP"):
            return "{" + ", ".join(f"{text(key)}: dyn({literal(item)})" for key, item in content.items()) + "}"
    raise ValueError(f"{value.type().name()} has no literal")


def our_answer(expression: str, theirs: Answer, environment: Environment) -> Answer:
    """The answer of this project. A value is only compared with that of the other implementation."""
    if theirs.stage != "value":
        condition = "value == null"
    elif theirs.detail == NAN:
        condition = "value != value"
    else:
        condition = f"value == {theirs.detail} && type(value) == type({theirs.detail})"
    selector_text = f"[dyn({expression})].all(value, {condition})"
    try:
        selector = compile_selector(selector_text, environment)
    except CompileError as error:
        return Answer("refused", f"{error.kind} {error.message}")
    try:
        is_same = selector.matches(DRIVER, DEVICE)
    except EvaluationError as error:
        return Answer("failed", f"{error.kind} {error.message}")
    return Answer("value", theirs.detail if is_same else "another value")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_expressions_have_the_value_that_cel_cpp_computes(part: int) -> None:
    random_source = random.Random(SEED + part)
    oracle = Oracle()
    environments = (Environment(), Environment("1.36"))
    differences = []
    compared = 0
    for _ in range(EXPRESSIONS // PARTS):
        kind = random_source.choice(RESULTS)
        expression = GRAMMAR.expression(random_source, kind, random_source.randint(1, DEPTH))
        if random_source.random() < 0.1:
            expression = mangled(random_source, expression)
        theirs = oracle.answer(expression)
        if theirs is None:
            continue
        ours = our_answer(expression, theirs, random_source.choice(environments))
        compared += theirs.stage == ours.stage == "value"
        same = theirs == ours if theirs.stage == "value" else theirs.stage == ours.stage
        if not same and not any(rule.explains(expression, theirs, ours) for rule in RULES):
            differences.append(f"{expression}\n  cel-cpp: {theirs}\n  here: {ours}")
    assert not differences, "\n".join(differences)
    assert compared >= COMPARED * (EXPRESSIONS // PARTS)
