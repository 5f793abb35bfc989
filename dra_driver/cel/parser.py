# SPDX-License-Identifier: Apache-2.0
"""Text to tree, by celpy's grammar extended in `selector.lark`.

The tree is built while the parser reduces, so no recursion is involved, however deep the expression.
Follows cel-go's `parser/parser.go`, including its two limits on nesting: on the depth of each grammar
rule, and on the depth of the operators, selections and calls in the tree.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from . import literals
from .ast import Call, Entry, Ident, Invalid, ListNode, Literal, MapNode, MessageNode, Node, Select, walk
from .errors import CompileError, Issue

MAX_CODE_POINTS: Final = 100_000
MAX_DEPTH: Final = 250

RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let"),
        *("loop", "package", "namespace", "null", "return", "true", "var", "void", "while"),
    )
)

_LITERALS: Final = {
    "INT_LIT": literals.integer,
    "UINT_LIT": literals.unsigned,
    "FLOAT_LIT": literals.double,
    "STRING_LIT": literals.string,
    "MLSTRING_LIT": literals.string,
    "BYTES_LIT": literals.octets,
    "BOOL_LIT": "true".__eq__,
    "NULL_LIT": lambda _: None,
}
_OPERAND_ENDS: Final = frozenset((*_LITERALS, "IDENT", "RPAR", "RSQB", "RBRACE"))


def parse(expression: str) -> Node:
    """The tree of an expression, macros not yet expanded. Raises CompileError."""
    if len(expression) > MAX_CODE_POINTS:
        message = f"the expression has {len(expression)} code points, more than {MAX_CODE_POINTS}"
        raise CompileError("size_limit", message, expression)
    from lark.exceptions import UnexpectedInput  # lark is imported when the first expression comes along

    try:
        piece = cast(_Piece, _parser().parse(expression))
    except UnexpectedInput as error:
        raise _syntax_error(expression, error) from None
    if max(piece.exprs, piece.relations, piece.calcs, piece.visits) > MAX_DEPTH:
        raise _too_deep(expression)
    return piece.node


def invalid_places(root: Node) -> list[Issue]:
    """What the parser or macros found wrong inside an otherwise well-formed expression, in source order."""
    found = [Issue(node.kind, node.message, node.offset) for node in walk(root) if isinstance(node, Invalid)]
    return sorted(found, key=lambda issue: issue.offset)


def _too_deep(expression: str) -> CompileError:
    return CompileError("size_limit", f"the expression is nested more than {MAX_DEPTH} levels deep", expression)


class _Piece:
    """A parsed part: its node, the nesting below it, and its name while it is nothing but `a.b.c`.

    `exprs`, `relations` and `calcs` count the active uses of these grammar rules, `visits` the nested operators.
    """

    __slots__ = ("calcs", "chain", "exprs", "name", "node", "relations", "visits")

    def __init__(self, node: Node, *parts: "_Piece", visit: int = 0) -> None:
        self.node = node
        self.exprs = max((part.exprs for part in parts), default=0)
        self.relations = max((part.relations for part in parts), default=0)
        self.calcs = max((part.calcs for part in parts), default=0)
        self.visits = max((part.visits for part in parts), default=0) + visit
        self.name = ""
        self.chain = ""


_Infix = tuple[str, _Piece, int]
"""An operator with its left operand and its place."""


def _infix(operator: str) -> Any:
    def build(_: object, left: _Piece, token: Any) -> _Infix:
        return operator, left, token.start_pos

    return build


class _TreeBuilder:
    """What to make of each rule of the grammar, once its parts are known. Anonymous tokens come as parts too."""

    def expr(self, condition: _Piece, *rest: Any) -> _Piece:
        if rest:
            question, then, _, otherwise = rest
            parts = (condition, then, otherwise)
            call = Call(question.start_pos, "_?_:_", [part.node for part in parts])
            condition = _Piece(call, *parts, visit=1)
        condition.exprs += 1
        return condition

    def conditionalor(self, *parts: Any) -> _Piece:
        return _chained("_||_", *parts)

    def conditionaland(self, *parts: Any) -> _Piece:
        return _chained("_&&_", *parts)

    relation_lt = _infix("_<_")
    relation_le = _infix("_<=_")
    relation_gt = _infix("_>_")
    relation_ge = _infix("_>=_")
    relation_eq = _infix("_==_")
    relation_ne = _infix("_!=_")
    relation_in = _infix("@in")
    addition_add = _infix("_+_")
    addition_sub = _infix("_-_")
    multiplication_mul = _infix("_*_")
    multiplication_div = _infix("_/_")
    multiplication_mod = _infix("_%_")

    def relation(self, *parts: Any) -> _Piece:
        piece = _binary(parts)
        right = parts[-1].relations
        piece.relations = max(parts[0][1].relations, right + 2) if len(parts) > 1 else right + 1
        return piece

    def addition(self, *parts: Any) -> _Piece:
        piece = _binary(parts)
        if len(parts) > 1:
            piece.calcs = max(parts[0][1].calcs, parts[1].calcs + 1)
        return piece

    def multiplication(self, *parts: Any) -> _Piece:
        piece = _binary(parts)
        right = parts[-1].calcs
        piece.calcs = max(parts[0][1].calcs, right + 2) if len(parts) > 1 else right + 1
        return piece

    def unary(self, piece: _Piece) -> _Piece:
        return piece

    def nots(self, *parts: Any) -> tuple[int, int]:
        """(how many, where the first one is)"""
        return (parts[0][0] + 1, parts[0][1]) if len(parts) > 1 else (1, parts[0].start_pos)

    minuses = nots

    def unary_not(self, signs: tuple[int, int], operand: _Piece) -> _Piece:
        return _prefixed("!_", signs, operand)

    def unary_neg(self, signs: tuple[int, int], operand: _Piece) -> _Piece:
        return _prefixed("-_", signs, operand)

    def member(self, piece: _Piece) -> _Piece:
        return piece

    def member_dot(self, operand: _Piece, dot: Any, field: Any) -> _Piece:
        piece = _Piece(Select(dot.start_pos, operand.node, str(field)), operand, visit=1)
        piece.name = f"{operand.name}.{field}" if operand.name else ""
        return piece

    def member_opt_dot(self, operand: _Piece, dot: Any, _: Any, field: Any) -> _Piece:
        name = Literal(field.start_pos, str(field))
        return _Piece(Call(dot.start_pos, "_?._", [operand.node, name]), operand, visit=1)

    def member_dot_arg(self, target: _Piece, _: Any, name: Any, opening: Any, *rest: Any) -> _Piece:
        arguments = _arguments(rest)
        call = Call(opening.start_pos, str(name), [argument.node for argument in arguments], target.node)
        return _Piece(call, target, *arguments, visit=1)

    def member_index(self, operand: _Piece, opening: Any, index: _Piece, _: Any) -> _Piece:
        return _Piece(Call(opening.start_pos, "_[_]", [operand.node, index.node]), operand, index, visit=1)

    def member_opt_index(self, operand: _Piece, opening: Any, _: Any, index: _Piece, __: Any) -> _Piece:
        return _Piece(Call(opening.start_pos, "_[?_]", [operand.node, index.node]), operand, index, visit=1)

    def member_object(self, operand: _Piece, opening: Any, *rest: Any) -> _Piece:
        fields: list[tuple[Entry, _Piece]] = rest[0] if isinstance(rest[0], list) else []
        values = [value for _, value in fields]
        if not operand.name:
            message = "only a message's name can stand in front of '{'"
            return _Piece(Invalid(opening.start_pos, "syntax", message, (operand.node,)), operand, *values)
        return _Piece(MessageNode(opening.start_pos, operand.name, [entry for entry, _ in fields]), *values)

    def primary(self, piece: _Piece) -> _Piece:
        return piece

    def dot_ident(self, _: Any, name: Any) -> _Piece:
        return self._named(name, absolute=True)

    def ident(self, name: Any) -> _Piece:
        return self._named(name, absolute=False)

    def _named(self, name: Any, *, absolute: bool) -> _Piece:
        text = str(name)
        piece = _Piece(_reserved(name) if text in RESERVED else Ident(name.start_pos, text, absolute=absolute))
        piece.name = f".{text}" if absolute else text
        return piece

    def dot_ident_arg(self, dot: Any, name: Any, opening: Any, *rest: Any) -> _Piece:
        return self._called(name, f"{dot}{name}", opening, rest)

    def ident_arg(self, name: Any, opening: Any, *rest: Any) -> _Piece:
        return self._called(name, str(name), opening, rest)

    def _called(self, name: Any, function: str, opening: Any, rest: tuple[Any, ...]) -> _Piece:
        arguments = _arguments(rest)
        if str(name) in RESERVED:
            return _Piece(_reserved(name), *arguments)
        return _Piece(Call(opening.start_pos, function, [argument.node for argument in arguments]), *arguments)

    def paren_expr(self, _: Any, inner: _Piece, __: Any) -> _Piece:
        inner.name = inner.chain = ""
        return inner

    def list_lit(self, opening: Any, *rest: Any) -> _Piece:
        elements: list[tuple[_Piece, bool]] = rest[0] if isinstance(rest[0], list) else []
        pieces = [piece for piece, _ in elements]
        optional = frozenset(index for index, (_, maybe) in enumerate(elements) if maybe)
        return _Piece(ListNode(opening.start_pos, [piece.node for piece in pieces], optional), *pieces)

    def element(self, *parts: Any) -> tuple[_Piece, bool]:
        return parts[-1], len(parts) > 1

    def elements(self, *parts: Any) -> list[Any]:
        return [parts[0]] if len(parts) == 1 else [*parts[0], parts[2]]

    mapinits = elements
    fieldinits = elements

    def map_lit(self, opening: Any, *rest: Any) -> _Piece:
        entries: list[tuple[Entry, _Piece, _Piece]] = rest[0] if isinstance(rest[0], list) else []
        pieces = [piece for _, key, value in entries for piece in (key, value)]
        return _Piece(MapNode(opening.start_pos, [entry for entry, _, _ in entries]), *pieces)

    def mapinit(self, key: tuple[_Piece, bool], colon: Any, value: _Piece) -> tuple[Entry, _Piece, _Piece]:
        piece, optional = key
        return Entry(colon.start_pos, piece.node, value.node, optional=optional), piece, value

    def fieldinit(self, *parts: Any) -> tuple[Entry, _Piece]:
        name, colon, value = parts[-3:]
        field = Literal(name.start_pos, str(name))
        return Entry(colon.start_pos, field, value.node, optional=len(parts) > 3), value

    def exprlist(self, *parts: Any) -> list[_Piece]:
        return [part for part in parts if isinstance(part, _Piece)]

    def literal(self, token: Any) -> _Piece:
        try:
            return _Piece(Literal(token.start_pos, _LITERALS[token.type](str(token))))
        except literals.LiteralError as error:
            return _Piece(Invalid(token.start_pos, "literal", str(error)))


def _reserved(name: Any) -> Invalid:
    return Invalid(name.start_pos, "reserved", f"reserved identifier: {name}")


def _arguments(rest: tuple[Any, ...]) -> list[_Piece]:
    return rest[0] if isinstance(rest[0], list) else []


def _chained(operator: str, *parts: Any) -> _Piece:
    """a && b && c as one call with three arguments: Kubernetes balances such chains, which comes to the same."""
    if len(parts) == 1:
        piece: _Piece = parts[0]
        return piece
    left, token, right = parts
    if left.chain == operator:
        left.node.arguments.append(right.node)
        call = left.node
    else:
        call = Call(token.start_pos, operator, [left.node, right.node])
    piece = _Piece(call, left, right)
    piece.chain = operator
    return piece


def _binary(parts: tuple[Any, ...]) -> _Piece:
    if len(parts) == 1:
        piece: _Piece = parts[0]
        return piece
    (operator, left, offset), right = parts
    return _Piece(Call(offset, operator, [left.node, right.node]), left, right, visit=1)


def _prefixed(operator: str, signs: tuple[int, int], operand: _Piece) -> _Piece:
    count, offset = signs
    if count % 2 == 0:  # pairs cancel out
        operand.name = ""
        return operand
    return _Piece(Call(offset, operator, [operand.node]), operand)


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
def _parser() -> Any:
    """The LALR parser, made once: celpy's grammar file, our extension, and the tree builder."""
    import lark

    spec = importlib.util.find_spec("celpy")  # finds the package without running it
    if spec is None or spec.origin is None:
        raise ImportError("the package cel-python (module celpy), which has CEL's grammar, is not installed")
    return lark.Lark.open(
        str(Path(__file__).with_name("selector.lark")),
        start="expr",
        parser="lalr",
        lexer="basic",
        postlex=_Signs(),
        import_paths=[str(Path(spec.origin).parent)],
        transformer=_callbacks(_TreeBuilder()),
        maybe_placeholders=False,
        keep_all_tokens=True,
    )


def _callbacks(builder: _TreeBuilder) -> SimpleNamespace:
    """The builder's methods as lark calls them, with the parts in a list."""

    def spread(build: Callable[..., object]) -> Callable[[list[Any]], object]:
        return lambda parts: build(*parts)

    return SimpleNamespace(
        **{name: spread(getattr(builder, name)) for name in dir(builder) if not name.startswith("_")}
    )


_BRACKETS: Final = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}
_SHOWN: Final = {
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "COMMA": "','",
    "COLON": "':'",
    "$END": "the end",
}


def _syntax_error(expression: str, error: Any) -> CompileError:
    """The error for text that is no expression, together with what is wrong before that place."""
    from lark.exceptions import UnexpectedToken

    offset = len(expression)
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        offset = error.token.start_pos
    elif not isinstance(error, UnexpectedToken):
        offset = error.pos_in_stream
    tokens = _tokens_before(expression, offset)
    if _bracket_depth(tokens) >= MAX_DEPTH:
        return _too_deep(expression)
    found = [issue for issue in _issues_of_tokens(tokens) if issue.offset < offset]
    found += _lost_selection(tokens, error)
    issues = (*sorted(found, key=lambda issue: issue.offset), Issue("syntax", _describe(error), offset))
    first = issues[0]
    return CompileError(first.kind, first.message, expression, first.offset, issues=issues)


def _describe(error: Any) -> str:
    from lark.exceptions import UnexpectedToken

    if not isinstance(error, UnexpectedToken):
        return f"syntax error: unexpected character {error.char!r}"
    found = "the end" if error.token.type == "$END" else f"'{error.token}'"
    expected = error.accepts or error.expected
    wanted = [shown for kind, shown in _SHOWN.items() if kind in expected and kind not in ("LPAR", "LSQB", "LBRACE")]
    if "INT_LIT" in expected:
        wanted.insert(0, "a value")
    elif "__ANON_0" in expected or "PLUS" in expected:
        wanted.insert(0, "an operator")
    elif "IDENT" in expected:
        wanted.insert(0, "a name")
    return f"syntax error: unexpected {found}" + (f", expected {' or '.join(wanted)}" if wanted else "")


def _tokens_before(expression: str, offset: int) -> list[Any]:
    from lark.exceptions import UnexpectedInput

    tokens: list[Any] = []
    try:
        for token in _parser().lex(expression):
            if token.start_pos >= offset:
                break
            tokens.append(token)
    except UnexpectedInput:
        pass  # the characters that end the token stream are what is being reported
    return tokens


def _bracket_depth(tokens: list[Any]) -> int:
    deepest = depth = 0
    for token in tokens:
        depth += (token.type in _BRACKETS.values()) - (token.type in _BRACKETS)
        deepest = max(deepest, depth)
    return deepest


def _issues_of_tokens(tokens: list[Any]) -> Iterator[Issue]:
    previous = ""
    for token in tokens:
        if token.type == "IDENT" and previous != "DOT" and str(token) in RESERVED:
            yield Issue("reserved", f"reserved identifier: {token}", token.start_pos)
        elif token.type in _LITERALS:
            try:
                _LITERALS[token.type](str(token))
            except literals.LiteralError as error:
                yield Issue("literal", str(error), token.start_pos)
        previous = token.type


def _lost_selection(tokens: list[Any], error: Any) -> list[Issue]:
    """has(a.in): the keyword ends the selection, and has() is left with an argument that is none."""
    keyword = getattr(getattr(error, "token", None), "type", "")
    if keyword not in ("IN", "BOOL_LIT", "NULL_LIT") or not tokens or tokens[-1].type != "DOT":
        return []
    depth = 0
    for index in range(len(tokens) - 1, 0, -1):
        depth += (tokens[index].type in _BRACKETS) - (tokens[index].type in _BRACKETS.values())
        if depth < 0:
            if tokens[index].type == "LPAR" and str(tokens[index - 1]) == "has":
                return [Issue("macro", "has() takes a field selection: has(a.b)", tokens[index + 1].start_pos)]
            return []
    return []
