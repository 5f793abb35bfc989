# SPDX-License-Identifier: Apache-2.0
"""Answers of API servers with values of users that are nested too deeply for Python's parser."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.kube.api.answers import decode_answer
from dra_driver.process.parsing import DEEPEST

VALUES = st.recursive(
    st.none() | st.integers() | st.text('[]{}\\"a', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}\\"a', max_size=4), inner, max_size=3),
    max_leaves=20,
)


def nested(levels: int, value: str = "1") -> str:
    """A text with so many levels of objects and arrays by turns."""
    pairs = [('{"a":', "}") if level % 2 else ("[", "]") for level in range(levels)]
    return "".join(first for first, _ in pairs) + value + "".join(last for _, last in reversed(pairs))


def depth(value: Any) -> int:
    """The number of levels of a value that is not nested too deeply."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@settings(max_examples=40)
@given(VALUES)
def test_ordinary_values_are_decoded_unchanged(value: Any) -> None:
    assert decode_answer(json.dumps(value).encode()) == value


@pytest.mark.parametrize("levels", [DEEPEST - 1, DEEPEST])
def test_values_up_to_the_limit_are_decoded_unchanged(levels: int) -> None:
    text = nested(levels)
    assert decode_answer(text.encode()) == json.loads(text)


@pytest.mark.parametrize("levels", [DEEPEST + 1, 2 * DEEPEST + 1, 999, 5_000, 100_000])
def test_deeper_values_are_replaced_by_null(levels: int) -> None:
    found = decode_answer(f'{{"deep": [{nested(levels)}, 2], "after": "]"}}'.encode())
    assert depth(found) == DEEPEST
    assert found["deep"][1] == 2
    assert found["after"] == "]"


@pytest.mark.parametrize(
    "text",
    ["[" * 30_000, "]" * 30_000, "[" * 30_000 + "}" * 30_000 + '"', '{"a": "[' + "[" * 200 + "}", "", "nothing"],
)
def test_invalid_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Invalid|delimiter"):
        decode_answer(text.encode())


def test_long_whole_numbers_are_floats() -> None:
    assert decode_answer(b'{"long": ' + b"9" * 5_000 + b', "short": 7}') == {"long": math.inf, "short": 7}


def test_brackets_in_strings_do_not_count() -> None:
    value = {"a": ["[" * 5_000, "\\" * 7, '"]}"'], "b": {"c": '\\"['}}
    assert decode_answer(json.dumps(value).encode()) == value
