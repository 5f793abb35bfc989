# SPDX-License-Identifier: Apache-2.0
"""The LALR parser: celpy's grammar file, our extension `selector.lark`, and the tree builder.

Working out its tables takes a tenth of a second, so they are kept in `tables.json`
(`python -m dra_driver.cel.syntax` writes it). They are worked out again where that file was made of another
grammar, or with a release of lark that it is not known to be right for.

The file holds what lark serialises of a parser (`Lark.memo_serialize`), in a form that is the same every time:
lark numbers the states anew in every process, here they are numbered as they are reached from the first one.
    grammar  SHA-256 of the grammar files that the tables were made of
    lark     the releases of lark that make these tables, and can read them
    memo     the terminals and the rules, which are referred to by their place in this list
    states   for each state what to do on a symbol: go to the state n, or, for a negative -1 - n, reduce by the rule n
    data     everything else"""

import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from .builder import LITERALS, TreeBuilder

Tables = dict[str, Any]
"""The file's contents."""

PATH: Final = Path(__file__).with_name("tables.json")

OPTIONS: Final[dict[str, Any]] = {
    "start": "expr",
    "parser": "lalr",
    "lexer": "basic",
    "maybe_placeholders": False,
    "keep_all_tokens": True,
}
"""lark's options that the tables depend on."""

_SHIFT, _REDUCE = 0, 1
"""lark's numbers for the two."""

_UNBOUNDED: Final = (1 << 32) - 1
"""The length of what a terminal without a longest token matches; Pythons have different numbers for it."""


def release(lark_version: str) -> str:
    """1.3 for 1.3.1: the releases with the same first two numbers have the same tables."""
    return ".".join(lark_version.split(".")[:2])


def kept() -> Tables:
    """The contents of the file."""
    tables: Tables = json.loads(PATH.read_text(encoding="utf-8"))
    return tables


def fitting(grammar: str, lark: str) -> Tables | None:
    """The contents of the file, None if it was made of another grammar or is not for this release of lark."""
    tables = kept()
    return tables if tables["grammar"] == grammar and lark in tables["lark"] else None


def parser_of(tables: Tables, **hooks: Any) -> Any:
    """The parser with these tables."""
    from lark import Lark

    reductions = [(_REDUCE, {"@": place}) for place in range(len(tables["memo"]))]
    states = [
        {symbol: (_SHIFT, step) if step >= 0 else reductions[-1 - step] for symbol, step in steps.items()}
        for steps in tables["states"]
    ]
    parser = tables["data"]["parser"]
    table = parser["parser"] | {
        "states": dict(enumerate(states)),
        "tokens": {symbol: symbol for steps in states for symbol in steps},
    }
    data = tables["data"] | {"options": OPTIONS, "parser": parser | {"parser": table}}
    load: Callable[..., Any] = Lark._load_from_dict  # what the parsers call that lark writes out as Python
    return load(data, dict(enumerate(tables["memo"])), **hooks)


def tables_of(parser: Any, grammar: str, lark: str) -> Tables:
    """The tables of a parser that was built with OPTIONS from this grammar, by this release of lark."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    data, memo = parser.memo_serialize([TerminalDef, Rule])
    del data["options"]
    table = data["parser"]["parser"]
    names = {number: str(name) for number, name in table.pop("tokens").items()}
    states = {
        number: {names[symbol]: step for symbol, step in steps.items()} for number, steps in table.pop("states").items()
    }
    order = _reached(states, *table["start_states"].values())
    for field in ("start_states", "end_states"):
        table[field] = {start: order.index(number) for start, number in table[field].items()}
    compact = [
        {
            symbol: order.index(target) if action == _SHIFT else -1 - target["@"]
            for symbol, (action, target) in sorted(states[number].items())
        }
        for number in order
    ]
    entries = [memo[place] for place in range(len(memo))]
    for pattern in (entry["pattern"] for entry in entries if "pattern" in entry):
        if "_width" in pattern:
            pattern["_width"] = [min(width, _UNBOUNDED) for width in pattern["_width"]]
    made = {"grammar": grammar, "lark": [lark], "memo": entries, "states": compact, "data": data}
    tables: Tables = json.loads(json.dumps(made))  # with lists for tuples, as the file has them
    return tables


def _reached(states: dict[int, dict[str, Any]], first: int) -> list[int]:
    """The states in the order in which they are reached, symbols in alphabetical order."""
    order = [first]
    for number in order:  # which grows
        targets = [target for _, (action, target) in sorted(states[number].items()) if action == _SHIFT]
        order += [target for target in dict.fromkeys(targets) if target not in order]
    return order


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

    ready = fitting(grammar_digest(), release(lark.__version__))
    return build_parser() if ready is None else parser_of(ready, **_hooks())


def build_parser() -> Any:
    """The parser, from the grammar files."""
    import lark

    return lark.Lark.open(str(_EXTENSION), import_paths=[str(_celpy_grammar().parent)], **OPTIONS, **_hooks())


def grammar_digest() -> str:
    """SHA-256 of the grammar files."""
    return hashlib.sha256(_celpy_grammar().read_bytes() + _EXTENSION.read_bytes()).hexdigest()


def _celpy_grammar() -> Path:
    spec = importlib.util.find_spec("celpy")  # finds the package without running it
    if spec is None or spec.origin is None:
        raise ImportError("the package cel-python (module celpy), which has CEL's grammar, is not installed")
    return Path(spec.origin).with_name("cel.lark")


def _hooks() -> dict[str, Any]:
    """The functions that the parser calls while it runs; they are not in its tables."""
    return {"postlex": _Signs(), "transformer": _callbacks(TreeBuilder())}


def _callbacks(builder: TreeBuilder) -> SimpleNamespace:
    """The builder's methods as lark calls them, with the parts in a list."""

    def spread(build: Callable[..., object]) -> Callable[[list[Any]], object]:
        return lambda parts: build(*parts)

    return SimpleNamespace(
        **{name: spread(getattr(builder, name)) for name in dir(builder) if not name.startswith("_")}
    )
