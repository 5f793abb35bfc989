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
    def build(_: object, parts: list[Any]) -> _Infix:
        left, token = parts
        return operator, left, token.start_pos

    return build


class TreeBuilder:
    """Builds the tree.

    Each method is a rule of the grammar. lark calls it with the parts of the rule, all tokens included.
    """

    def field(self, parts: list[Any]) -> Any:
        """The token of a field name, without its backquotes. Invalid for a reserved word."""
        (token,) = parts
        if token.type == "IDENT":
            return token
        if token.type == "ESC_IDENT":
            return token.update(value=str(token).strip("`"))
        message = f"syntax error: {token} is a reserved word: write ['{token}'] instead of .{token}"
        return Invalid(token.start_pos, "syntax", message)

    def expr(self, parts: list[Any]) -> Piece:
        condition: Piece = parts[0]
        if len(parts) > 1:
            _, question, then, _, otherwise = parts
            operands = (condition, then, otherwise)
            call = Call(question.start_pos, "_?_:_", [operand.node for operand in operands])
            condition = Piece(call, *operands, visit=1)
        condition.exprs += 1
        return condition

    def conditionalor(self, parts: list[Any]) -> Piece:
        return _chained("_||_", parts)

    def conditionaland(self, parts: list[Any]) -> Piece:
        return _chained("_&&_", parts)

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

    def relation(self, parts: list[Any]) -> Piece:
        piece = _binary(parts)
        right = parts[-1].relations
        piece.relations = max(parts[0][1].relations, right + 2) if len(parts) > 1 else right + 1
        return piece

    def addition(self, parts: list[Any]) -> Piece:
        piece = _binary(parts)
        if len(parts) > 1:
            piece.calcs = max(parts[0][1].calcs, parts[1].calcs + 1)
        return piece

    def multiplication(self, parts: list[Any]) -> Piece:
        piece = _binary(parts)
        right = parts[-1].calcs
        piece.calcs = max(parts[0][1].calcs, right + 2) if len(parts) > 1 else right + 1
        return piece

    def unary(self, parts: list[Any]) -> Piece:
        piece: Piece = parts[0]
        return piece

    member = unary
    primary = unary

    def nots(self, parts: list[Any]) -> tuple[int, int]:
        """The number of signs, and the offset of the first sign."""
        return (parts[0][0] + 1, parts[0][1]) if len(parts) > 1 else (1, parts[0].start_pos)

    minuses = nots

    def unary_not(self, parts: list[Any]) -> Piece:
        return _prefixed("!_", *parts)

    def unary_neg(self, parts: list[Any]) -> Piece:
        return _prefixed("-_", *parts)

    def member_dot(self, parts: list[Any]) -> Piece:
        operand, dot, field = parts
        if isinstance(field, Invalid):
            return _invalid_field(field, operand)
        piece = Piece(Select(dot.start_pos, operand.node, str(field)), operand, visit=1)
        piece.name = f"{operand.name}.{field}" if operand.name and field.type == "IDENT" else ""
        return piece

    def member_opt_dot(self, parts: list[Any]) -> Piece:
        operand, dot, _, field = parts
        if isinstance(field, Invalid):
            return _invalid_field(field, operand)
        name = Literal(field.start_pos, str(field))
        return Piece(Call(dot.start_pos, "_?._", [operand.node, name]), operand, visit=1)

    def member_dot_arg(self, parts: list[Any]) -> Piece:
        target, _, name, opening, *rest = parts
        arguments: list[Piece] = _inside(rest)
        call = Call(opening.start_pos, str(name), [argument.node for argument in arguments], target.node)
        return Piece(call, target, *arguments, visit=1)

    def member_index(self, parts: list[Any]) -> Piece:
        operand, opening, index, _ = parts
        return _indexed("_[_]", operand, opening, index)

    def member_opt_index(self, parts: list[Any]) -> Piece:
        operand, opening, _, index, _ = parts
        return _indexed("_[?_]", operand, opening, index)

    def member_object(self, parts: list[Any]) -> Piece:
        operand, opening, *rest = parts
        fields: list[tuple[Entry, Piece]] = _inside(rest)
        values = [value for _, value in fields]
        if not operand.name:
            message = "only the name of a message is allowed before '{'"
            return Piece(Invalid(opening.start_pos, "syntax", message, (operand.node,)), operand, *values)
        return Piece(MessageNode(opening.start_pos, operand.name, [entry for entry, _ in fields]), *values)

    def ident(self, parts: list[Any]) -> Piece:
        (name,) = parts
        return _named(name, absolute=False)

    def dot_ident(self, parts: list[Any]) -> Piece:
        _, name = parts
        return _named(name, absolute=True)

    def ident_arg(self, parts: list[Any]) -> Piece:
        name, opening, *rest = parts
        return _called(name, str(name), opening, rest)

    def dot_ident_arg(self, parts: list[Any]) -> Piece:
        dot, name, opening, *rest = parts
        return _called(name, f"{dot}{name}", opening, rest)

    def paren_expr(self, parts: list[Any]) -> Piece:
        inner: Piece = parts[1]
        inner.name = inner.chain = ""
        return inner

    def list_lit(self, parts: list[Any]) -> Piece:
        opening, *rest = parts
        elements: list[tuple[Piece, bool]] = _inside(rest)
        pieces = [piece for piece, _ in elements]
        optional = frozenset(index for index, (_, maybe) in enumerate(elements) if maybe)
        return Piece(ListNode(opening.start_pos, [piece.node for piece in pieces], optional), *pieces)

    def element(self, parts: list[Any]) -> tuple[Piece, bool]:
        return parts[-1], len(parts) > 1

    def elements(self, parts: list[Any]) -> list[Any]:
        return [parts[0]] if len(parts) == 1 else [*parts[0], parts[2]]

    mapinits = elements
    fieldinits = elements

    def map_lit(self, parts: list[Any]) -> Piece:
        opening, *rest = parts
        entries: list[tuple[Entry, Piece, Piece]] = _inside(rest)
        pieces = [piece for _, key, value in entries for piece in (key, value)]
        return Piece(MapNode(opening.start_pos, [entry for entry, _, _ in entries]), *pieces)

    def mapinit(self, parts: list[Any]) -> tuple[Entry, Piece, Piece]:
        (key, optional), colon, value = parts
        return Entry(colon.start_pos, key.node, value.node, optional=optional), key, value

    def fieldinit(self, parts: list[Any]) -> tuple[Entry, Piece]:
        name, colon, value = parts[-3:]
        if isinstance(name, Invalid):
            return Entry(colon.start_pos, Literal(name.offset, ""), name), _invalid_field(name, value)
        field = Literal(name.start_pos, str(name))
        return Entry(colon.start_pos, field, value.node, optional=len(parts) > 3), value

    def exprlist(self, parts: list[Any]) -> list[Piece]:
        return [part for part in parts if isinstance(part, Piece)]

    def literal(self, parts: list[Any]) -> Piece:
        (token,) = parts
        try:
            return Piece(Literal(token.start_pos, LITERALS[token.type](str(token))))
        except LiteralError as error:
            return Piece(Invalid(token.start_pos, "literal", str(error)))


def _named(name: Any, *, absolute: bool) -> Piece:
    text = str(name)
    piece = Piece(_reserved(name) if text in RESERVED else Ident(name.start_pos, text, absolute=absolute))
    piece.name = f".{text}" if absolute else text
    return piece


def _called(name: Any, function: str, opening: Any, rest: list[Any]) -> Piece:
    arguments: list[Piece] = _inside(rest)
    if str(name) in RESERVED:
        return Piece(_reserved(name), *arguments)
    return Piece(Call(opening.start_pos, function, [argument.node for argument in arguments]), *arguments)


def _indexed(operator: str, operand: Piece, opening: Any, index: Piece) -> Piece:
    return Piece(Call(opening.start_pos, operator, [operand.node, index.node]), operand, index, visit=1)


def _invalid_field(field: Invalid, operand: Piece) -> Piece:
    return Piece(Invalid(field.offset, field.kind, field.message, (operand.node,)), operand)


def _reserved(name: Any) -> Invalid:
    return Invalid(name.start_pos, "reserved", f"reserved identifier: {name}")


def _inside(rest: list[Any]) -> list[Any]:
    """The elements, entries or arguments after an opening bracket, empty if the closing one follows."""
    return rest[0] if isinstance(rest[0], list) else []


def _chained(operator: str, parts: list[Any]) -> Piece:
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


def _binary(parts: list[Any]) -> Piece:
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
