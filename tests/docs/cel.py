# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/explanation/cel.md: one expression in all stages of `dra_driver.scheduler.cel`."""

from collections.abc import Iterator, Sequence
from typing import Final, cast

from dra_driver.kube.resource import Device
from dra_driver.scheduler.cel import Environment, EvaluationError, compile_derivation, compile_selector
from dra_driver.scheduler.cel.check import check
from dra_driver.scheduler.cel.library import registry_of
from dra_driver.scheduler.cel.parse import parse
from dra_driver.scheduler.cel.parse.builder import Piece
from dra_driver.scheduler.cel.parse.grammar import lark_parser
from dra_driver.scheduler.cel.sizes import CallEstimate, Operand, Size
from dra_driver.scheduler.cel.tree import Call, Comprehension, Expression, Ident, Literal, Select
from dra_driver.scheduler.cel.types import STRING

EXPRESSION: Final = "['H100', 'H200'].exists(name, device.attributes['gpu.nvidia.com'].model.startsWith(name))"
DRIVER: Final = "gpu.nvidia.com"
ENVIRONMENT: Final = Environment("1.36")
PARTS: Final = (
    "device.attributes['gpu.nvidia.com'].model",
    "device.attributes['gpu.nvidia.com'].model.startsWith('H100')",
    "['H100', 'H200']",
)
"""Parts of the expression whose costs are shown alone."""
DEVICES: Final = (
    Device("gpu-0", attributes={"model": "H100-SXM5-80GB"}),
    Device("gpu-1", attributes={"model": "A100-SXM4-80GB"}),
    Device("gpu-2", attributes={"modelName": "H100"}),
)


def tokens() -> Iterator[Sequence[str]]:
    """Offset, terminal of the grammar, text."""
    yield "offset", "terminal", "text"
    for token in lark_parser().lex(EXPRESSION):
        yield str(token.start_pos), token.type, f"`{token}`"


def parsed() -> Iterator[Sequence[str]]:
    """The tree before macros are expanded: node, offset."""
    yield "node", "offset"
    piece = cast(Piece, lark_parser().parse(EXPRESSION))
    for level, role, node in levels(piece.node):
        yield shown(level, role, node), str(node.offset)


def checked() -> Iterator[Sequence[str]]:
    """The tree after macros are expanded and types are found: node, type, overloads."""
    yield "node", "type", "overload"
    registry = registry_of(ENVIRONMENT)
    tree = parse(EXPRESSION, registry.macros)
    assert check(tree, registry, ENVIRONMENT) == []
    for level, role, node in levels(tree):
        overloads = node.overloads if isinstance(node, Call) else ()
        yield shown(level, role, node), f"`{node.type}`", ", ".join(f"`{overload}`" for overload in overloads)


def function() -> Iterator[Sequence[str]]:
    """What the library says about startsWith(), with an example."""
    yield "the library says", "for example"
    declared = registry_of(ENVIRONMENT).functions["startsWith"]
    (overload,) = declared.overloads
    call, cost = overload.call, declared.cost_of(overload)
    assert call is not None
    assert cost.actual is not None
    assert cost.estimate is not None
    arguments = ("H100-SXM5-80GB", "H100")
    written = f"{arguments[0]!r}.startsWith({arguments[1]!r})"
    types = [str(part) for part in overload.parameters]
    yield "what it does (`call`)", f"`{written}` is `{str(call(*arguments)).lower()}`"
    yield "its types (`parameters`, `result`)", f"`{overload.id}`: `{types[0]}.({types[1]}) -> {overload.result}`"
    yield "the cost of a call (`Cost.actual`)", f"`{written}` costs {cost.actual(arguments, True)}"
    target, affix = (Operand(None, STRING, (), Size(0, size)) for size in (64, 4))
    estimated: CallEstimate = cost.estimate(target, affix)
    yield "the cost in the worst case (`Cost.estimate`)", f"64 and 4 characters cost {estimated.cost}"


def costs() -> Iterator[Sequence[str]]:
    """Expression, cost in the worst case."""
    yield "expression", "cost in the worst case"
    for part in PARTS:
        yield f"`{part}`", str(compile_derivation(part, ENVIRONMENT).max_cost)
    yield "all of it", str(compile_selector(EXPRESSION, ENVIRONMENT).max_cost)


def answers() -> Iterator[Sequence[str]]:
    """Attributes of a device, answer, cost."""
    yield "attributes of the device", "answer", "cost"
    selector = compile_selector(EXPRESSION, ENVIRONMENT)
    for device in DEVICES:
        attributes = ", ".join(f"`{name}: {value}`" for name, value in device.attributes.items())
        try:
            answer, cost = selector.evaluate(DRIVER, device)
            yield attributes, f"`{str(answer).lower()}`", str(cost)
        except EvaluationError as error:
            yield attributes, f"error `{error.kind}`: {error.message}", str(error.cost)


def levels(root: Expression, level: int = 0, role: str = "") -> Iterator[tuple[int, str, Expression]]:
    """Each node with its level, and its role if it is a part of a loop."""
    yield level, role, root
    roles = ("range", "initial", "condition", "step", "result") if isinstance(root, Comprehension) else ()
    for index, child in enumerate(root.children()):
        yield from levels(child, level + 1, f"{roles[index]}: " if roles else "")


def shown(level: int, role: str, node: Expression) -> str:
    """The node in one line, with two dots for each level."""
    match node:
        case Literal():
            text = f"{node.value!r}"
        case Ident():
            text = node.name
        case Select():
            text = f".{node.field}"
        case Call():
            text = f"{node.function}()"
        case Comprehension():
            text = node.variable
        case _:
            text = ""
    return f"`{'·· ' * level}{role}{type(node).__name__} {text}".rstrip() + "`"
