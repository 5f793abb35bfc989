# SPDX-License-Identifier: Apache-2.0
"""The LALR parser: celpy's grammar file, our extension `selector.lark`, and the tree builder.

Working out its tables takes a tenth of a second, so they are kept in a file (tables.py). They are worked out
again where that file was made of another grammar, or with a release of lark that it is not known to be right for.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from . import tables
from .tree_builder import LITERALS, TreeBuilder

_EXTENSION: Final = Path(__file__).with_name("selector.lark")
_OPERAND_ENDS: Final = frozenset((*LITERALS, "IDENT", "RPAR", "RSQB", "RBRACE"))


class _Signs:
    """Joins a single minus sign to the number after it, where an operand begins: -5 is a literal, --5 is not."""

    always_accept = ()

    def process(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The token stream with signed numbers."""
        held: list[Any] = []  # minus signs in front of an operand
        operand_may_end = False
        for token in stream:
            if token.type == "MINUS" and not operand_may_end:
                held.append(token)
                continue
            if len(held) == 1 and token.type in ("INT_LIT", "FLOAT_LIT"):
                sign = held.pop()
                token = token.update(value="-" + token)
                token.start_pos, token.line, token.column = sign.start_pos, sign.line, sign.column
            yield from held
            held.clear()
            operand_may_end = token.type in _OPERAND_ENDS
            yield token
        yield from held


@functools.cache
def lark_parser() -> Any:
    """The parser, made when the first expression comes along, and once."""
    import lark

    ready = tables.fitting(grammar_digest(), tables.release(lark.__version__))
    return build_parser() if ready is None else tables.parser_of(ready, **_hooks())


def build_parser() -> Any:
    """The parser, from the grammar files."""
    import lark

    return lark.Lark.open(str(_EXTENSION), import_paths=[str(_celpy_grammar().parent)], **tables.OPTIONS, **_hooks())


def grammar_digest() -> str:
    """SHA-256 of the grammar files."""
    return hashlib.sha256(_celpy_grammar().read_bytes() + _EXTENSION.read_bytes()).hexdigest()


def _celpy_grammar() -> Path:
    spec = importlib.util.find_spec("celpy")  # finds the package without running it
    if spec is None or spec.origin is None:
        raise ImportError("the package cel-python (module celpy), which has CEL's grammar, is not installed")
    return Path(spec.origin).with_name("cel.lark")


def _hooks() -> dict[str, Any]:
    """What the parser calls while it runs; no part of its tables."""
    return {"postlex": _Signs(), "transformer": _callbacks(TreeBuilder())}


def _callbacks(builder: TreeBuilder) -> SimpleNamespace:
    """The builder's methods as lark calls them, with the parts in a list."""

    def spread(build: Callable[..., object]) -> Callable[[list[Any]], object]:
        return lambda parts: build(*parts)

    return SimpleNamespace(
        **{name: spread(getattr(builder, name)) for name in dir(builder) if not name.startswith("_")}
    )
