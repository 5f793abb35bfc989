# SPDX-License-Identifier: Apache-2.0
"""The parser: from text to a tree whose macros are expanded.

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

`parse` follows cel-go's `parser/parser.go`, including its two limits of nesting: the depth of each rule of the grammar,
and the depth of operators, selections and calls in the tree. Which macros exist depends on the environment.

Checking, compiling and evaluating a tree recurses in Python code only, which needs no space on the C stack. Python's
own limit of recursion is enough for the expressions that people write. For deeper expressions `make_room` raises the
limit of the process. The limit is not lowered again, because another thread may need it. The deepest expressions that
the parser accepts need about ten thousand frames.
"""

import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from ..errors import CelIssue, CompileError
from .builder import LITERALS, RESERVED, Piece, TreeBuilder
from .tree import Expression, Invalid, Macros, TooLargeError, depth, expand, walk

MAX_CODE_POINTS: Final = 100_000
MAX_DEPTH: Final = 250
_FRAMES_PER_LEVEL: Final = 8
_SPARE_FRAMES: Final = 300
"""Frames for the code before and after the recursion."""

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

_OPENING: Final = frozenset(("LPAR", "LSQB", "LBRACE"))
_CLOSING: Final = frozenset(("RPAR", "RSQB", "RBRACE"))
_SHOWN: Final = {"RPAR": "')'", "RSQB": "']'", "RBRACE": "'}'", "COMMA": "','", "COLON": "':'", "$END": "the end"}
_BEFORE_FIELDS: Final = frozenset(("DOT", "QMARK"))
_OPERAND_ENDS: Final = frozenset((*LITERALS, "IDENT", "RPAR", "RSQB", "RBRACE"))


def parse(expression: str, macros: Macros, *, quoted_names: bool = False) -> Expression:
    """The tree of an expression. `quoted_names` allows fields in backquotes. Raises CompileError."""
    if len(expression) > MAX_CODE_POINTS:
        message = f"the expression has {len(expression)} code points, more than {MAX_CODE_POINTS}"
        raise CompileError("size_limit", message, expression)
    from lark.exceptions import UnexpectedInput  # lark is imported only for the first expression

    parser = lark_parser(quoted_names=quoted_names)
    try:
        piece = cast(Piece, parser.parse(expression))
    except UnexpectedInput as error:
        raise _syntax_error(expression, error, parser) from None
    if _is_too_deep(piece):
        raise _too_deep(expression)
    tree = _expanded(expression, piece.node, macros)
    issues = _invalid_places(tree)
    if issues:
        raise refusal(expression, issues)
    return tree


def refusal(expression: str, issues: list[CelIssue]) -> CompileError:
    """The error for an expression with these issues. There must be at least one."""
    first = issues[0]
    return CompileError(first.kind, first.message, expression, first.offset, issues=tuple(issues))


def _expanded(expression: str, tree: Expression, macros: Macros) -> Expression:
    make_room(tree)
    try:
        tree = expand(tree, macros)
    except TooLargeError:
        raise CompileError(
            "size_limit", "the expression is too large after its macros are expanded", expression
        ) from None
    make_room(tree)
    return tree


def _invalid_places(root: Expression) -> list[CelIssue]:
    """The errors in a tree, in source order. Errors in the parts of an invalid place come before its own error."""
    invalid = reversed([node for node in walk(root) if isinstance(node, Invalid)])
    found = [CelIssue(node.kind, node.message, node.offset) for node in invalid]
    return sorted(found, key=lambda issue: issue.offset)


def _syntax_error(expression: str, error: Any, parser: Any) -> CompileError:
    """The error for text that is not an expression. `error` is lark's UnexpectedInput."""
    from lark.exceptions import UnexpectedToken

    offset: int = error.pos_in_stream
    if isinstance(error, UnexpectedToken):
        offset = len(expression) if error.token.type == "$END" else error.token.start_pos
    before = list(parser.lex(expression[:offset]))
    if _deepest_bracket(before) >= MAX_DEPTH:
        return _too_deep(expression)
    issue = _first_reserved(before) or CelIssue("syntax", _describe(error), offset)
    return refusal(expression, [issue])


def _first_reserved(tokens: list[Any]) -> CelIssue | None:
    """The first reserved word that is used as a name, such as `let` in `let x = 1`. It explains the syntax error."""
    for previous, token in itertools.pairwise([None, *tokens]):
        if token.type == "IDENT" and token in RESERVED and (previous is None or previous.type not in _BEFORE_FIELDS):
            return CelIssue("reserved", f"reserved identifier: {token}", token.start_pos)
    return None


def _describe(error: Any) -> str:
    from lark.exceptions import UnexpectedToken

    if not isinstance(error, UnexpectedToken):
        return f"syntax error: unexpected character {error.char!r}"
    found = "end" if error.token.type == "$END" else f"'{error.token}'"
    expected = error.accepts or error.expected
    wanted = [shown for kind, shown in _SHOWN.items() if kind in expected]
    if "INT_LIT" in expected:
        wanted.insert(0, "a value")
    elif "PLUS" in expected:
        wanted.insert(0, "an operator")
    elif "IDENT" in expected:
        wanted.insert(0, "a name")
    return f"syntax error: unexpected {found}" + (f", expected {' or '.join(wanted)}" if wanted else "")


def _deepest_bracket(tokens: list[Any]) -> int:
    deepest = depth = 0
    for token in tokens:
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
        deepest = max(deepest, depth)
    return deepest


def _is_too_deep(piece: Piece) -> bool:
    return max(piece.exprs, piece.relations, piece.calcs, piece.visits) > MAX_DEPTH


def _too_deep(expression: str) -> CompileError:
    return CompileError("size_limit", f"the expression is nested more than {MAX_DEPTH} levels deep", expression)


def make_room(root: Expression) -> None:
    """Raise Python's limit of recursion if this tree may need it."""
    needed = _FRAMES_PER_LEVEL * depth(root) + _SPARE_FRAMES
    if needed > sys.getrecursionlimit() // 2:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed + len(inspect.stack(0))))


# The parser and its tables


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
