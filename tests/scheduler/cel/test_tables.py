# SPDX-License-Identifier: Apache-2.0
"""The stored tables of the parser are those of the grammar."""

from pathlib import Path
from typing import Any

import lark
import pytest

from dra_driver.scheduler.cel.parse import grammar as syntax
from dra_driver.scheduler.cel.tree import Expression, walk
from tests import golden
from tests.golden.cel.vectors import vectors

from .tables import tables_of

RELEASE = syntax.release(lark.__version__)
COMMAND = "python -m tests.scheduler.cel.tables"


def test_the_file_has_the_tables_of_the_grammar() -> None:
    made = tables_of(syntax.build_parser(), syntax.grammar_digest(), RELEASE)
    stored = syntax.stored_tables()
    different = [field for field in made if field != "lark" and made[field] != stored[field]]
    assert different == [], f"celpy, lark {lark.__version__} or selector.lark make other tables: run {COMMAND}"
    if RELEASE not in stored["lark"]:
        pytest.skip(f"lark {RELEASE} makes the same tables, but builds them every time: run {COMMAND}")


def test_a_parser_with_these_tables_has_these_tables() -> None:
    stored = syntax.stored_tables()
    parser = syntax.parser_of(stored, postlex=None, transformer=None)
    assert tables_of(parser, stored["grammar"], "") == stored | {"lark": [""]}


def test_tables_of_another_grammar_or_for_another_lark_are_not_used() -> None:
    stored = syntax.stored_tables()
    assert syntax.fitting(stored["grammar"], stored["lark"][0]) == stored
    assert syntax.fitting("of another grammar", stored["lark"][0]) is None
    assert syntax.fitting(stored["grammar"], "0.12") is None


def test_a_parser_built_from_the_grammar_reads_expressions_the_same_way() -> None:
    built, loaded = syntax.build_parser(), syntax.lark_parser()
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


def described(node: Expression) -> tuple[object, ...]:
    fields = [getattr(node, name) for name in type(node).__slots__]
    plain = [repr(field) for field in fields if isinstance(field, str | bytes | int | float | frozenset)]
    return type(node), node.offset, len(list(node.children())), plain
