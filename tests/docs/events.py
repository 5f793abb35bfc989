# SPDX-License-Identifier: Apache-2.0
"""The reasons of the Events that the code writes, read from the calls that write them."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from .commands import ROOT

_WRITERS = ("_event", "_on_event", "on_event", "warning")
"""What is called with (object, reason, message). A log's `warning` has no word like a reason there."""
_CALL = re.compile(rf"\b(?<!log\.)(?:{'|'.join(_WRITERS)})\(")
_CONSTANT = re.compile(r'^ *([A-Z_]+)(?:: [^=\n]+)? = "([^"\n]*)"$', re.MULTILINE)
_REASON = re.compile(r"([A-Z][a-z]+)+")


@cache
def event_reasons(folder: str) -> frozenset[str]:
    """Those of all Events of type Warning that the code in a folder of the checkout writes."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")]
    names = {name: text for source in sources for name, text in _CONSTANT.findall(source)}
    trees = [ast.parse(source) for source in sources if _CALL.search(source)]
    given = (second for tree in trees for node in ast.walk(tree) for second in _second_argument(node))
    words = (names.get(one.id) if isinstance(one, ast.Name) else _text(one) for one in given)
    return frozenset(word for word in words if word and _REASON.fullmatch(word))


def _second_argument(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and len(node.args) >= 3:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if name in _WRITERS:
            yield node.args[1]


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
