# SPDX-License-Identifier: Apache-2.0
"""The parser's tables are kept in a file, and are those of the grammar."""

from pathlib import Path
from typing import Any

import lark
import pytest

from dra_driver.cel.syntax import grammar
from dra_driver.cel.syntax.tree import Node, walk
from tests import golden
from tests.golden.cel.vectors import vectors

RELEASE = grammar.release(lark.__version__)
COMMAND = "python -m dra_driver.cel.syntax"


def test_the_file_has_the_tables_of_the_grammar() -> None:
    made = grammar.tables_of(grammar.build_parser(), grammar.grammar_digest(), RELEASE)
    kept = grammar.kept()
    different = [field for field in made if field != "lark" and made[field] != kept[field]]
    assert different == [], f"celpy, lark {lark.__version__} or selector.lark make other tables: type {COMMAND}"
    if RELEASE not in kept["lark"]:
        pytest.skip(f"lark {RELEASE} makes the same tables, but builds them every time: type {COMMAND}")


def test_a_parser_with_these_tables_has_these_tables() -> None:
    kept = grammar.kept()
    parser = grammar.parser_of(kept, postlex=None, transformer=None)
    assert grammar.tables_of(parser, kept["grammar"], "") == kept | {"lark": [""]}


def test_tables_of_another_grammar_or_for_another_lark_are_not_used() -> None:
    kept = grammar.kept()
    assert grammar.fitting(kept["grammar"], kept["lark"][0]) == kept
    assert grammar.fitting("of another grammar", kept["lark"][0]) is None
    assert grammar.fitting(kept["grammar"], "0.12") is None


def test_a_parser_built_from_the_grammar_reads_expressions_the_same_way() -> None:
    built, loaded = grammar.build_parser(), grammar.lark_parser()
    every_tenth = list(vectors(Path(golden.__file__ or "").parent / "cel"))[::10]
    outcomes = [(outcome(built, vector.expression), outcome(loaded, vector.expression)) for vector in every_tenth]
    assert [theirs for theirs, _ in outcomes] == [ours for _, ours in outcomes]
    assert {type(theirs) for theirs, _ in outcomes} == {list, tuple}


def outcome(parser: Any, expression: str) -> list[object] | tuple[object, ...]:
    """The nodes of the tree, outer ones first, or what stopped the parser and where."""
    try:
        return [described(node) for node in walk(parser.parse(expression).node)]
    except lark.UnexpectedInput as error:
        return type(error), error.pos_in_stream, getattr(error, "expected", None)


def described(node: Node) -> tuple[object, ...]:
    fields = [getattr(node, name) for name in type(node).__slots__]
    plain = [repr(field) for field in fields if isinstance(field, str | bytes | int | float | frozenset)]
    return type(node), node.offset, len(list(node.children())), plain
