# SPDX-License-Identifier: Apache-2.0
"""CEL expressions of classes, claims and templates: whether they compile, and what they may cost.

The scheduler compiles stored expressions. The API server checks written expressions, and accepts fewer. A claim that is
made from a template is written for each pod.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...kube.resource import Device, DeviceClaim, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ...kube.resource.codec import Decoded
from ...scheduler.cel import (
    COST_LIMIT,
    CompileError,
    Derivation,
    Environment,
    EvaluationError,
    Selector,
    compile_derivation,
    compile_selector,
)
from ..report import listed
from .difference import Aspect, Difference, Effect
from .sides import Side, Sides

_Expression = tuple[str, bool]
"""The text, and whether it computes an attribute."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a release makes of an expression: the error about a stored one, that about a new one (empty if there is
    none), the highest possible cost, and the highest cost of an evaluation on a known device.
    """

    stored: str
    new: str
    cost: int
    measured: int

    @property
    def is_accepted(self) -> bool:
        """Whether it can be stored, and the scheduler evaluates it."""
        return not (self.stored or self.new)

    @property
    def text(self) -> str:
        """The answer in words."""
        if self.stored:
            return f"does not compile: {self.stored}"
        if self.new:
            return f"is evaluated if it is stored already, and is refused in new objects: {self.new}"
        return f"may cost {self.cost} of {COST_LIMIT}, and costs at most {self.measured} on the known devices"


def expression_differences(objects: Iterable[Decoded], sides: Sides) -> Iterator[Difference]:
    """The differences about the expressions of the objects, one for each namespace and expression."""
    every = list(objects)
    devices = _forms(object_ for object_ in every if isinstance(object_, ResourceSlice))
    users: dict[tuple[str, _Expression], list[str]] = defaultdict(list)
    for object_ in every:
        for place, expression in _expressions(object_):
            kind = type(object_).__name__
            users[object_.metadata.namespace or "", expression].append(f"{kind} {object_.metadata}: {place}")
    for (namespace, (text, derives)), places in users.items():
        before, after = (_compiled(text, side, devices, derives=derives) for side in (sides.now, sides.then))
        if before == after:
            continue
        effect = Effect.CHANGES
        if before.is_accepted != after.is_accepted:
            effect = Effect.HELPS if after.is_accepted else Effect.BREAKS
        subject = f"{listed(places, 1)}: {text}"
        yield Difference(
            Aspect.EXPRESSION, effect, subject, before.text, after.text, namespace, tuple(places), len(places)
        )


def _forms(slices: Iterable[ResourceSlice]) -> list[tuple[str, Device]]:
    """A device, with its driver, for each set of names of attributes and capacities."""
    found: dict[object, tuple[str, Device]] = {}
    for slice_ in slices:
        for device in slice_.devices:
            key = (slice_.driver, device.allow_multiple_allocations, *device.attributes, None, *device.capacity)
            found.setdefault(key, (slice_.driver, device))
    return list(found.values())


@functools.lru_cache(maxsize=1024)
def _program(expression: str, environment: Environment, *, derives: bool) -> Selector | Derivation | CompileError:
    """The program of an expression, or why it does not compile. Many namespaces have claims with the same selectors."""
    try:
        return (compile_derivation if derives else compile_selector)(expression, environment)
    except CompileError as error:
        return error


def _compiled(expression: str, side: Side, devices: Iterable[tuple[str, Device]], *, derives: bool) -> Compiled:
    errors: dict[bool, str] = {}
    cost = measured = 0
    for stored in (False, True):
        environment = Environment(
            side.release,
            consumable_capacity=side.features.consumable_capacity,
            list_type_attributes=side.features.list_attributes,
            stored=stored,
        )
        program = _program(expression, environment, derives=derives)
        if isinstance(program, CompileError):
            errors[stored] = program.message
            continue
        cost = program.max_cost
        errors[stored] = "" if stored or cost <= COST_LIMIT else f"may cost {cost}, more than {COST_LIMIT}"
        if stored and isinstance(program, Selector):
            measured = max((_cost_on(program, *each) for each in devices), default=0)
    return Compiled(errors[True], errors[False], cost, measured)


def _cost_on(selector: Selector, driver: str, device: Device) -> int:
    """The cost of the evaluation on a device, until an error ends it."""
    try:
        return selector.evaluate(driver, device)[1]
    except EvaluationError as error:
        return error.cost or 0


def _expressions(object_: Decoded) -> Iterator[tuple[str, _Expression]]:
    """The expressions of an object, each with its place in words."""
    match object_:
        case DeviceClass():
            yield from ((f"selector {index}", (text, False)) for index, text in enumerate(object_.selectors))
        case ResourceClaim() | ResourceClaimTemplate():
            yield from _of_claim(object_.spec)


def _of_claim(spec: DeviceClaim) -> Iterator[tuple[str, _Expression]]:
    for name, required in spec.requirements:
        for index, text in enumerate(required.selectors):
            yield f"selector {index} of request {name}", (text, False)
        for derived in required.derived_attributes:
            yield f"attribute {derived.name} of request {name}", (derived.expression, True)
