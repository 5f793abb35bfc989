# SPDX-License-Identifier: Apache-2.0
"""The reasons of the Events that the code writes, read from the calls that write them."""

import ast
import re
from collections.abc import Iterator

from .commands import ROOT

_WRITERS = ("_event", "_on_event", "on_event", "warning")
"""What is called with (object, reason, message). A log's `warning` has no word like a reason there."""
_REASON = re.compile(r"([A-Z][a-z]+)+")


def event_reasons(folder: str) -> set[str]:
    """Those of all Events of type Warning that the code in a folder of the checkout writes."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = dict(constant for node in nodes for constant in _constant(node))
    given = (second for node in nodes for second in _second_argument(node))
    words = (names.get(one.id) if isinstance(one, ast.Name) else _text(one) for one in given)
    return {word for word in words if word and _REASON.fullmatch(word)}


def _second_argument(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and len(node.args) >= 3:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in _WRITERS:
            yield node.args[1]


def _constant(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(NAME, text) of an assignment."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            if name.isupper() and (text := _text(value)):
                yield name, text


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
