# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON of users: the values that kubectl makes of it, or one line that says where it is wrong."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.errors import ParseError
from dra_driver.process.parsing import DEEPEST, decode_text, load, load_all
from tests.support.hostile import HOSTILE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing", None),
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: 2024-99-01", {"a": "2024-99-01"}),
        ("a: !!timestamp soon", {"a": "soon"}),
        ("a: 1:30", {"a": "1:30"}),
        ("a: 0000:12:00.0", {"a": "0000:12:00.0"}),
        ("a: =", {"a": "="}),
        ("a: 1234e567", {"a": "1234e567"}),
        ("[0o17, 017, 0x1f, 0b11, 1_000, -5]", [15, 15, 31, 3, 1000, -5]),
        ("[1.5, .5, 1e3, -2.]", [1.5, 0.5, 1000.0, -2.0]),
        ("[yes, off, ~, null]", [True, False, None, None]),
        ("{1: a, true: b, 1.5: c}", {"1": "a", "true": "b", "1.5": "c"}),
        ("a: &a {x: 1, y: 1}\nb: {<<: *a, x: 2}", {"a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 1}}),
        ("a: {<<: [{name: 1}, {name: 2, other: 2}]}", {"a": {"name": 1, "other": 2}}),
        ("a: {<<: {name: 1}, name: 2}", {"a": {"name": 2}}),
        ("a: {<<: &b {<<: {k: 1}, k: 2}}\nc: *b", {"a": {"k": 2}, "c": {"k": 2}}),
        ('{\n\t"a": "\\ud83d\\ude00"\n}', {"a": "\N{GRINNING FACE}"}),
        ("{a: 1} # YAML may begin so", {"a": 1}),
    ],
)
def test_values_are_those_of_kubectl(text: str, value: object) -> None:
    assert load(text) == value


def test_a_stream_has_a_value_for_each_document() -> None:
    assert load_all("a\n---\n---\n[1]") == ["a", None, [1]]
    with pytest.raises(ParseError, match="several documents"):
        load("a\n---\nb")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [\n", "2:1: is not YAML: while parsing a flow node, did not find expected node content"),
        ("a: 1\nb: {c: 1, c: 2}", "2:11: key 'c' is there twice"),
        ('{"a": 1,\n\t"b": {"c": 1, "c": 2}}', "2:16: key 'c' is there twice"),
        ("a:\n  b: !!int foo", "2:6: 'foo' is not a whole number"),
        ("ä: ö\nb: \x01", "2:1: is not YAML: control characters are not allowed"),
        ("a: !secret b", "1:4: the tag '!secret' has no meaning in Kubernetes: remove it"),
        ("{~: 1}", "1:2: is not YAML: while constructing a mapping, found a key that is not text"),
        (
            "a: {<<: 1}",
            "1:9: is not YAML: while constructing a mapping, expected a mapping or list of mappings for merging, but"
            " found scalar",
        ),
        ('{"a": NaN}', "1:1: NaN is not a number in JSON"),
    ],
)
def test_a_mistake_is_said_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ParseError) as raised:
        load(text)
    assert str(raised.value) == problem


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_refused_in_one_short_line(content: bytes) -> None:
    with pytest.raises(ParseError) as raised:
        load(decode_text(content))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


def test_as_deep_as_is_allowed_is_read_as_yaml_and_as_json() -> None:
    inner = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)
    assert load(f'{{"a": {inner}}}') == load(f"a: {inner}")
    for text in (f'{{"a": [{inner}]}}', f"a: [{inner}]"):
        with pytest.raises(ParseError, match=f"deeper than {DEEPEST} levels"):
            load(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_is_utf_8_or_utf_16_with_a_mark(encoding: str) -> None:
    assert decode_text("a: ö".encode(encoding)) == "a: ö"


def test_document_with_small_aliases_may_be_large() -> None:
    found = load("a: &a [1, 2]\nb: " + json.dumps(list(range(10_000))) + "\nc: *a")
    assert found["c"] == [1, 2]


@given(st.text("ab:-[]{}|>'\"#&*!<%@ \t\n\\x?,.01", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ParseError):
        json.dumps(load_all(text), allow_nan=False)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_json_is_read_as_it_is(value: Any) -> None:
    assert load(json.dumps([value])) == [value]
