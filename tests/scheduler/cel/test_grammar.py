# SPDX-License-Identifier: Apache-2.0
"""The parser, made of its grammar or loaded from the wheel."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import lark
import pytest

from dra_driver.scheduler.cel.parse import grammar
from dra_driver.scheduler.cel.tree import Expression, walk
from tests import golden
from tests.golden.cel.vectors import vectors

UNPICKLED = """
import sys
found = []
sys.addaudithook(lambda event, arguments: event == "pickle.find_class" and found.append(arguments))
from dra_driver.scheduler.cel import compile_selector
compile_selector("true")
print(found)
"""


def test_saved_parser_reads_expressions_like_the_parser_that_was_saved(tmp_path: Path) -> None:
    with grammar.save(tmp_path).open("rb") as file:
        loaded = lark.Lark.load(file)
    built = grammar.build_parser()
    every_tenth = list(vectors(Path(golden.__file__ or "").parent / "cel"))[::10]
    outcomes = [outcome(built, vector.expression) for vector in every_tenth]
    assert [outcome(loaded, vector.expression) for vector in every_tenth] == outcomes
    assert {type(found) for found in outcomes} == {list, tuple}


def test_saved_parser_names_no_folder_of_the_machine_that_made_it(tmp_path: Path) -> None:
    assert str(Path(lark.__file__).parents[1]).encode() not in grammar.save(tmp_path).read_bytes()


@pytest.mark.parametrize(("text", "release"), [(b"expr: A", "0.12.0"), (b"expr: A\n", "1.2.2")])
def test_parser_of_another_grammar_or_release_of_lark_has_another_name(text: bytes, release: str) -> None:
    assert grammar.name_of(text, release) != grammar.name_of(b"expr: A", "1.2.2")


@pytest.mark.node
def test_checkout_unpickles_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", UNPICKLED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def outcome(parser: Any, expression: str) -> list[object] | tuple[object, ...]:
    """The nodes of the tree, outer ones first, or what stopped the parser and where."""
    try:
        return [described(node) for node in walk(parser.parse(expression).node)]
    except lark.UnexpectedInput as error:
        return type(error), error.pos_in_stream, getattr(error, "expected", None)


def described(node: Expression) -> tuple[object, ...]:
    fields = [getattr(node, name) for name in type(node).__slots__]
    plain = [repr(field) for field in fields if isinstance(field, str | bytes | int | float | frozenset)]
    return type(node), node.offset, len(list(node.children())), plain
