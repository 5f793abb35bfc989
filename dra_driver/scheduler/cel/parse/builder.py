# SPDX-License-Identifier: Apache-2.0
"""The tree builder: the nodes of the tree, and how deep they are nested.

The parser calls the builder for each rule that it has recognized, so building needs no recursion, also for deep
expressions. Follows the visitor of cel-go's `parser/parser.go`.
"""

from typing import Any, Final

from ..tree import Call, Entry, Expression, Ident, Invalid, ListNode, Literal, MapNode, MessageNode, Select
from .literals import LITERALS, LiteralError

RESERVED: Final = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let"),
        *("loop", "package", "namespace", "null", "return", "true", "var", "void", "while"),
    )
)


class Piece:
    """A parsed part of the text: its node, and how deep the expressions below it are nested.

    `exprs`, `relations` and `calcs` are the numbers of nested uses of these rules of the grammar, `visits` the number
    of nested operators. `name` is set while the part consists only of names and dots, `chain` while it is a chain of &&
    or ||.
    """

    __slots__ = ("calcs", "chain", "exprs", "name", "node", "relations", "visits")

    def __init__(self, node: Expression, *parts: "Piece", visit: int = 0) -> None:
        self.node = node
        self.exprs: int = max([part.exprs for part in parts], default=0)
        self.relations: int = max([part.relations for part in parts], default=0)
        self.calcs: int = max([part.calcs for part in parts], default=0)
        self.visits: int = max([part.visits for part in parts], default=0) + visit
        self.name = ""
        self.chain = ""


_Infix = tuple[str, Piece, int]
"""An operator, its left operand, and its offset."""


def _infix(operator: str) -> Any:
    def build(_: object, left: Piece, token: Any) -> _Infix:
        return operator, left, token.start_pos

    return build


class TreeBuilder:
    """Builds the tree.

    Each method is a rule of the grammar. Its arguments are the parts of the rule with all tokens.
    """

    def __init__(self, *, quoted_names: bool) -> None:
        self._quoted_names = quoted_names

    def field(self, token: Any) -> Any:
        """The token of a field name, without its backquotes. Invalid for a name that is not allowed."""
        if token.type == "IDENT":
            return token
        if token.type != "ESC_IDENT":
            message = f"syntax error: {token} is a reserved word: write ['{token}'] instead of .{token}"
            return Invalid(token.start_pos, "syntax", message)
        if not self._quoted_names:
            return Invalid(token.start_pos, "syntax", "syntax error: names in backquotes are supported from 1.37 on")
        return token.update(value=str(token).strip("`"))

    def expr(self, condition: Piece, *rest: Any) -> Piece:
        if rest:
            question, then, _, otherwise = rest
            parts = (condition, then, otherwise)
            call = Call(question.start_pos, "_?_:_", [part.node for part in parts])
            condition = Piece(call, *parts, visit=1)
        condition.exprs += 1
        return condition

    def conditionalor(self, *parts: Any) -> Piece:
        return _chained("_||_", *parts)

    def conditionaland(self, *parts: Any) -> Piece:
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

    def relation(self, *parts: Any) -> Piece:
        piece = _binary(parts)
        right = parts[-1].relations
        piece.relations = max(parts[0][1].relations, right + 2) if len(parts) > 1 else right + 1
        return piece

    def addition(self, *parts: Any) -> Piece:
        piece = _binary(parts)
        if len(parts) > 1:
            piece.calcs = max(parts[0][1].calcs, parts[1].calcs + 1)
        return piece

    def multiplication(self, *parts: Any) -> Piece:
        piece = _binary(parts)
        right = parts[-1].calcs
        piece.calcs = max(parts[0][1].calcs, right + 2) if len(parts) > 1 else right + 1
        return piece

    def unary(self, piece: Piece) -> Piece:
        return piece

    member = unary
    primary = unary

    def nots(self, *parts: Any) -> tuple[int, int]:
        """The number of signs, and the offset of the first sign."""
        return (parts[0][0] + 1, parts[0][1]) if len(parts) > 1 else (1, parts[0].start_pos)

    minuses = nots

    def unary_not(self, signs: tuple[int, int], operand: Piece) -> Piece:
        return _prefixed("!_", signs, operand)

    def unary_neg(self, signs: tuple[int, int], operand: Piece) -> Piece:
        return _prefixed("-_", signs, operand)

    def member_dot(self, operand: Piece, dot: Any, field: Any) -> Piece:
        if isinstance(field, Invalid):
            return _invalid_field(field, operand)
        piece = Piece(Select(dot.start_pos, operand.node, str(field)), operand, visit=1)
        piece.name = f"{operand.name}.{field}" if operand.name and field.type == "IDENT" else ""
        return piece

    def member_opt_dot(self, operand: Piece, dot: Any, _: Any, field: Any) -> Piece:
        if isinstance(field, Invalid):
            return _invalid_field(field, operand)
        name = Literal(field.start_pos, str(field))
        return Piece(Call(dot.start_pos, "_?._", [operand.node, name]), operand, visit=1)

    def member_dot_arg(self, target: Piece, _: Any, name: Any, opening: Any, *rest: Any) -> Piece:
        arguments: list[Piece] = _parts(rest)
        call = Call(opening.start_pos, str(name), [argument.node for argument in arguments], target.node)
        return Piece(call, target, *arguments, visit=1)

    def member_index(self, operand: Piece, opening: Any, index: Piece, _: Any, operator: str = "_[_]") -> Piece:
        return Piece(Call(opening.start_pos, operator, [operand.node, index.node]), operand, index, visit=1)

    def member_opt_index(self, operand: Piece, opening: Any, _: Any, index: Piece, closing: Any) -> Piece:
        return self.member_index(operand, opening, index, closing, "_[?_]")

    def member_object(self, operand: Piece, opening: Any, *rest: Any) -> Piece:
        fields: list[tuple[Entry, Piece]] = _parts(rest)
        values = [value for _, value in fields]
        if not operand.name:
            message = "only the name of a message is allowed before '{'"
            return Piece(Invalid(opening.start_pos, "syntax", message, (operand.node,)), operand, *values)
        return Piece(MessageNode(opening.start_pos, operand.name, [entry for entry, _ in fields]), *values)

    def dot_ident(self, _: Any, name: Any) -> Piece:
        return self._named(name, absolute=True)

    def ident(self, name: Any) -> Piece:
        return self._named(name, absolute=False)

    def _named(self, name: Any, *, absolute: bool) -> Piece:
        text = str(name)
        piece = Piece(_reserved(name) if text in RESERVED else Ident(name.start_pos, text, absolute=absolute))
        piece.name = f".{text}" if absolute else text
        return piece

    def dot_ident_arg(self, dot: Any, name: Any, opening: Any, *rest: Any) -> Piece:
        return self._called(name, f"{dot}{name}", opening, rest)

    def ident_arg(self, name: Any, opening: Any, *rest: Any) -> Piece:
        return self._called(name, str(name), opening, rest)

    def _called(self, name: Any, function: str, opening: Any, rest: tuple[Any, ...]) -> Piece:
        arguments: list[Piece] = _parts(rest)
        if str(name) in RESERVED:
            return Piece(_reserved(name), *arguments)
        return Piece(Call(opening.start_pos, function, [argument.node for argument in arguments]), *arguments)

    def paren_expr(self, _: Any, inner: Piece, __: Any) -> Piece:
        inner.name = inner.chain = ""
        return inner

    def list_lit(self, opening: Any, *rest: Any) -> Piece:
        elements: list[tuple[Piece, bool]] = _parts(rest)
        pieces = [piece for piece, _ in elements]
        optional = frozenset(index for index, (_, maybe) in enumerate(elements) if maybe)
        return Piece(ListNode(opening.start_pos, [piece.node for piece in pieces], optional), *pieces)

    def element(self, *parts: Any) -> tuple[Piece, bool]:
        return parts[-1], len(parts) > 1

    def elements(self, *parts: Any) -> list[Any]:
        return [parts[0]] if len(parts) == 1 else [*parts[0], parts[2]]

    mapinits = elements
    fieldinits = elements

    def map_lit(self, opening: Any, *rest: Any) -> Piece:
        entries: list[tuple[Entry, Piece, Piece]] = _parts(rest)
        pieces = [piece for _, key, value in entries for piece in (key, value)]
        return Piece(MapNode(opening.start_pos, [entry for entry, _, _ in entries]), *pieces)

    def mapinit(self, key: tuple[Piece, bool], colon: Any, value: Piece) -> tuple[Entry, Piece, Piece]:
        piece, optional = key
        return Entry(colon.start_pos, piece.node, value.node, optional=optional), piece, value

    def fieldinit(self, *parts: Any) -> tuple[Entry, Piece]:
        name, colon, value = parts[-3:]
        if isinstance(name, Invalid):
            return Entry(colon.start_pos, Literal(name.offset, ""), name), _invalid_field(name, value)
        field = Literal(name.start_pos, str(name))
        return Entry(colon.start_pos, field, value.node, optional=len(parts) > 3), value

    def exprlist(self, *parts: Any) -> list[Piece]:
        return [part for part in parts if isinstance(part, Piece)]

    def literal(self, token: Any) -> Piece:
        try:
            return Piece(Literal(token.start_pos, LITERALS[token.type](str(token))))
        except LiteralError as error:
            return Piece(Invalid(token.start_pos, "literal", str(error)))


def _invalid_field(field: Invalid, operand: Piece) -> Piece:
    return Piece(Invalid(field.offset, field.kind, field.message, (operand.node,)), operand)


def _reserved(name: Any) -> Invalid:
    return Invalid(name.start_pos, "reserved", f"reserved identifier: {name}")


def _parts(rest: tuple[Any, ...]) -> list[Any]:
    """The elements, entries or arguments after an opening bracket, empty if the closing one follows."""
    return rest[0] if isinstance(rest[0], list) else []


def _chained(operator: str, *parts: Any) -> Piece:
    """a && b && c as one call with three arguments.

    Kubernetes makes a balanced tree of it, which has the same result.
    """
    if len(parts) == 1:
        piece: Piece = parts[0]
        return piece
    left, token, right = parts
    if left.chain == operator:
        left.node.arguments.append(right.node)
        call = left.node
    else:
        call = Call(token.start_pos, operator, [left.node, right.node])
    piece = Piece(call, left, right)
    piece.chain = operator
    return piece


def _binary(parts: tuple[Any, ...]) -> Piece:
    if len(parts) == 1:
        piece: Piece = parts[0]
        return piece
    (operator, left, offset), right = parts
    return Piece(Call(offset, operator, [left.node, right.node]), left, right, visit=1)


def _prefixed(operator: str, signs: tuple[int, int], operand: Piece) -> Piece:
    count, offset = signs
    if count % 2 == 0:  # pairs cancel out
        operand.name = ""
        return operand
    return Piece(Call(offset, operator, [operand.node]), operand)
