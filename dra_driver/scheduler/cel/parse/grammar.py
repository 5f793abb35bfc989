# SPDX-License-Identifier: Apache-2.0
"""The parser, which lark makes of a grammar.

The grammar is the grammar file of celpy, extended by `selector.lark`. lark builds an LALR parser for it. Building takes
a tenth of a second, so the tables of the parser are stored in `tables.json` (`python -m tests.scheduler.cel.tables`
writes the file). The parser is built from the grammar if the file was made from another grammar or is not known to fit
the installed release of lark.

The file has what lark serializes of a parser (`Lark.memo_serialize`). Its form does not depend on the process that
wrote it: lark numbers states differently in each process, but here states are numbered in the order in which they are
reached.
    grammar  SHA-256 of the grammar files
    lark     the releases of lark that build these tables and can load them
    memo     the terminals and the rules; other fields refer to them by their index
    states   for each state, what to do for a symbol: n means go to state n, and -1 - n means reduce by rule n
    data     everything else
"""

import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from .builder import TreeBuilder
from .literals import LITERALS

Tables = dict[str, Any]
"""The contents of `tables.json`."""

PATH: Final = Path(__file__).with_name("tables.json")
_EXTENSION: Final = Path(__file__).with_name("selector.lark")

OPTIONS: Final[dict[str, Any]] = {
    "start": "expr",
    "parser": "lalr",
    "lexer": "basic",
    "maybe_placeholders": False,
    "keep_all_tokens": True,
}
"""The options of lark that the tables depend on."""

SHIFT, REDUCE = 0, 1
"""lark's numbers of these two actions."""

_OPERAND_ENDS: Final = frozenset((*LITERALS, "IDENT", "RPAR", "RSQB", "RBRACE"))


@functools.cache
def lark_parser(*, quoted_names: bool = False) -> Any:
    """The parser. It is made for the first expression, and then kept."""
    import lark

    ready = fitting(grammar_digest(), release(lark.__version__))
    if ready is None:
        return build_parser(quoted_names=quoted_names)
    return parser_of(ready, **_hooks(quoted_names=quoted_names))


def build_parser(*, quoted_names: bool = False) -> Any:
    """A parser that is built from the grammar files."""
    import lark

    hooks = _hooks(quoted_names=quoted_names)
    return lark.Lark.open(str(_EXTENSION), import_paths=[str(_celpy_grammar().parent)], **OPTIONS, **hooks)


def parser_of(tables: Tables, **hooks: Any) -> Any:
    """A parser with these tables."""
    from lark import Lark

    reductions = [(REDUCE, {"@": index}) for index in range(len(tables["memo"]))]
    states = [
        {symbol: (SHIFT, step) if step >= 0 else reductions[-1 - step] for symbol, step in steps.items()}
        for steps in tables["states"]
    ]
    parser = tables["data"]["parser"]
    table = parser["parser"] | {
        "states": dict(enumerate(states)),
        "tokens": {symbol: symbol for steps in states for symbol in steps},
    }
    data = tables["data"] | {"options": OPTIONS, "parser": parser | {"parser": table}}
    load: Callable[..., Any] = Lark._load_from_dict  # lark's own generated parsers call it, too
    return load(data, dict(enumerate(tables["memo"])), **hooks)


def stored_tables() -> Tables:
    """The contents of the file."""
    tables: Tables = json.loads(PATH.read_text(encoding="utf-8"))
    return tables


def fitting(grammar: str, lark: str) -> Tables | None:
    """The contents of the file. None if it was made from another grammar or is not for this release of lark."""
    tables = stored_tables()
    return tables if tables["grammar"] == grammar and lark in tables["lark"] else None


def release(lark_version: str) -> str:
    """`1.3` for `1.3.1`, because releases with the same first two numbers have the same tables."""
    return ".".join(lark_version.split(".")[:2])


def grammar_digest() -> str:
    """SHA-256 of the grammar files."""
    return hashlib.sha256(_celpy_grammar().read_bytes() + _EXTENSION.read_bytes()).hexdigest()


def _celpy_grammar() -> Path:
    spec = importlib.util.find_spec("celpy")  # finds the package without importing it
    if spec is None or spec.origin is None:
        raise ImportError("the package cel-python (module celpy), which has CEL's grammar, is not installed")
    return Path(spec.origin).with_name("cel.lark")


def _hooks(*, quoted_names: bool) -> dict[str, Any]:
    """The functions that the parser calls while it runs. They are not in its tables."""
    builder = TreeBuilder(quoted_names=quoted_names)

    def with_list(name: str) -> Callable[[list[Any]], object]:
        build: Callable[..., object] = getattr(builder, name)
        return lambda parts: build(*parts)  # lark passes the parts as a list

    rules = {name: with_list(name) for name in dir(builder) if not name.startswith("_")}
    return {"postlex": _Signs(), "transformer": SimpleNamespace(**rules)}


class _Signs:
    """Joins a minus sign and the number after it at the start of an operand: -5 is a literal, --5 and 1-5 are not."""

    always_accept = ()

    def process(self, stream: Iterator[Any]) -> Iterator[Any]:
        """The stream of tokens with signed numbers."""
        held: list[Any] = []  # minus signs at the start of an operand
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
