# SPDX-License-Identifier: Apache-2.0
"""The known devices and DeviceClasses, and the devices that selectors of claims select."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from ...kube.resource import (
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceRequirements,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from ...kube.resource.codec import Decoded
from ...scheduler.allocator import Cluster, ErrorKind, Features, allocate
from ...scheduler.cel import CompileError, Environment, EvaluationError, PublishedNames, Selector, compile_selector
from ..selectors import Blame, FalsePart, parts, usual_mistakes, version_names

_OF_ONE_NODE: Final = frozenset(
    ["addressingMode", "cudaDriverVersion", "driverVersion", "numaNode", "parentUUID", "pciBusID", "pcieRoot", "uuid"]
)
"""Attributes that describe the place of a device and the setup of its node, not its model."""
_OF_ONE_GPU: Final = frozenset(["parentUUID", "pciBusID", "uuid"])
"""Those of them whose values differ in the same way on every node of a model."""

_AS_SPECIFIED: Final = Features(as_specified=True)
"""The rules of the API, without defects of a release."""
_MOST_NODES: Final = 64
_MOST_STEPS: Final = 500
"""Limits of the search for a node that fits, because a lint must answer at once: kinds of nodes, and steps on each."""


@dataclass(frozen=True, slots=True)
class CandidateDevice:
    """A device with everything that it publishes."""

    driver: str
    pool: str
    device: Device

    def __str__(self) -> str:
        return f"{self.pool}/{self.device.name}"


def known_devices(objects: Iterable[Decoded]) -> list[CandidateDevice]:
    """The devices of the slices among the objects."""
    slices = (object_ for object_ in objects if isinstance(object_, ResourceSlice))
    return [CandidateDevice(slice_.driver, slice_.pool.name, device) for slice_ in slices for device in slice_.devices]


@dataclass(frozen=True, slots=True)
class SelectorStep:
    """The devices before and after one selector.

    `selector` is None if it does not compile. Then all devices are left.
    """

    selector: Selector | None
    before: tuple[CandidateDevice, ...]
    after: tuple[CandidateDevice, ...]
    failed: tuple[tuple[CandidateDevice, EvaluationError], ...] = ()


def _kind(slice_: ResourceSlice, device: Device) -> Hashable:
    """The common properties of the nodes of one kind."""
    attributes = device.attributes
    return (slice_.driver, device.name, *(str(attributes.get(name)) for name in ("type", "productName", "profile")))


class KnownObjects:
    """The devices and classes that files are checked against. Several checks may share them.

    The selectors of classes are evaluated on all devices. These results and the names that devices publish are kept.
    """

    def __init__(self, objects: Iterable[Decoded]) -> None:
        everything = list(objects)
        self.devices = tuple(known_devices(everything))
        self.classes = {object_.metadata.name: object_ for object_ in everything if isinstance(object_, DeviceClass)}
        self.slices = tuple(object_ for object_ in everything if isinstance(object_, ResourceSlice))
        self._steps: dict[tuple[Environment, tuple[str, ...]], tuple[SelectorStep, ...]] = {}

    @cached_property
    def names(self) -> PublishedNames:
        """The attributes and capacities that any device publishes."""
        return PublishedNames.of((device.driver, device.device) for device in self.devices)

    @cached_property
    def versions(self) -> frozenset[str]:
        """The names of attributes that are versions."""
        return version_names(device.device for device in self.devices)

    def steps(self, expressions: Sequence[str], environment: Environment) -> tuple[SelectorStep, ...]:
        """The results of the selectors of a class on all devices. Ends when no device is left.

        Many classes begin with the same selector, such as those for MIG profiles, so its result is kept, too.
        """
        key = environment, tuple(expressions)
        if key not in self._steps:
            first = self.steps(expressions[:1], environment) if len(expressions) > 1 else ()
            left = first[-1].after if first else self.devices
            others = expressions[len(first) :] if left or not first else ()
            more = _narrow((_compiled(expression, environment) for expression in others), left)
            self._steps[key] = (*first, *more)
        return self._steps[key]


class Catalog:
    """The known objects and the classes that are `given` in files. These replace known classes of the same name.

    `where` is the place of the devices in words. `models`: they are examples of their models.
    """

    def __init__(
        self, known: KnownObjects, given: Iterable[DeviceClass], release: str, where: str, *, models: bool
    ) -> None:
        self.where = where
        self._models = models
        self._known = known
        self.devices = known.devices
        self.classes = {**known.classes, **{device_class.metadata.name: device_class for device_class in given}}
        self._environment = Environment(release)
        # Blame hands the scheduler's features on; the release alone decides here, older ones included.
        self._blame = Blame(lambda text, _: compile_selector(text, self._environment), Features())
        self._of_class: dict[str, tuple[CandidateDevice, ...] | None] = {}
        self._names: dict[str, PublishedNames] = {}
        self._steps: dict[tuple[str, tuple[str, ...]], tuple[SelectorStep, ...]] = {}
        self._compile = cache(_compiled)

    def of_class(self, name: str) -> tuple[CandidateDevice, ...] | None:
        """The devices of a class; None if the class is unknown, or is for a driver without known devices."""
        if name not in self._of_class:
            found = self.classes.get(name)
            if found is None or self.is_foreign(found):
                self._of_class[name] = None
            else:
                steps = self.class_steps(found)
                self._of_class[name] = steps[-1].after if steps else self.devices
        return self._of_class[name]

    def class_steps(self, device_class: DeviceClass) -> tuple[SelectorStep, ...]:
        """The selectors of a class, on all known devices."""
        return self._known.steps(device_class.selectors, self._environment)

    def is_foreign(self, device_class: DeviceClass) -> bool:
        """Whether the class is for a driver without known devices: it selects that driver, or reads its attributes."""
        steps = self.class_steps(device_class)
        last = steps[-1] if steps else None
        if not self.devices:
            return True
        if last is None or last.selector is None or last.after:
            return False
        if last.failed:
            reads = last.selector.reads
            return not {device.driver for device in self.devices} & {
                name for name, _ in reads.attributes | reads.capacities
            }
        return set(self.culprit(last)[1]) == {"driver"}

    def steps(self, requirement: DeviceRequirements) -> tuple[SelectorStep, ...]:
        """The selectors of a request, on the devices of its class. Empty if no device of the class is known."""
        key = requirement.device_class_name, requirement.selectors
        if key not in self._steps:
            devices = self.of_class(requirement.device_class_name)
            self._steps[key] = () if not devices else self.narrow(requirement.selectors, devices)
        return self._steps[key]

    def candidates(self, requirement: DeviceRequirements) -> tuple[CandidateDevice, ...]:
        """The known devices that a request selects. Empty also if no device of its class is known."""
        steps = self.steps(requirement)
        return steps[-1].after if steps else self.of_class(requirement.device_class_name) or ()

    def narrow(self, expressions: Sequence[str], devices: tuple[CandidateDevice, ...]) -> tuple[SelectorStep, ...]:
        """One step for each expression, until no device is left."""
        return _narrow((self._compile(expression, self._environment) for expression in expressions), devices)

    def mistakes(self, expression: str) -> list[str]:
        """Advice for usual mistakes in an expression."""
        return usual_mistakes(expression, self._known.versions)

    def is_conclusive(self, saw: Iterable[str]) -> bool:
        """Whether the values of these attributes on the known devices are those of devices elsewhere."""
        return not (self._models and _OF_ONE_NODE & set(saw))

    def is_conclusive_constraint(self, name: str) -> bool:
        """Whether a constraint on this attribute has the same answer on other nodes with the known models."""
        return name.rpartition("/")[2] in _OF_ONE_GPU or self.is_conclusive([name.rpartition("/")[2]])

    def fitting_node(self, devices: DeviceClaim) -> str | None:
        """A known node that has these devices if all of its devices are free. Empty if there is none, and None if that
        is not known.
        """
        classes = {required.device_class_name for _, required in devices.requirements}
        if not all(self.of_class(name) for name in classes) or not self._idle_nodes:
            return None
        claim = ResourceClaim(ObjectMeta("claim", "default"), devices)
        is_known = True
        for name, cluster in self._idle_nodes.items():
            outcome = allocate(cluster, [claim], name, _AS_SPECIFIED, limit=_MOST_STEPS)
            if outcome.kind == "allocated":
                return name
            if outcome.error_kind is ErrorKind.SEARCH_LIMIT:
                return None
            is_known &= outcome.kind == "unavailable"
        return "" if is_known else None

    @cached_property
    def _idle_nodes(self) -> Mapping[str, Cluster]:
        """A cluster for each known node, one of each kind of node. Empty if there are too many kinds, or devices of no
        single node.
        """
        by_node: dict[str, list[ResourceSlice]] = {}
        for slice_ in self._known.slices:
            if slice_.node_name is None:
                return {}
            by_node.setdefault(slice_.node_name, []).append(slice_)
        kinds: dict[Hashable, str] = {}
        for name, slices in by_node.items():
            kinds.setdefault(frozenset(_kind(slice_, device) for slice_ in slices for device in slice_.devices), name)
        if len(kinds) > _MOST_NODES:
            return {}
        classes = tuple(self.classes.values())
        return {name: Cluster(tuple(by_node[name]), classes, (Node(ObjectMeta(name)),)) for name in kinds.values()}

    def culprit(self, step: SelectorStep) -> tuple[str, dict[str, dict[str, None]]]:
        """The part of a selector that excluded the last devices, and the values that it found, by attribute."""
        assert step.selector is not None
        expression = step.selector.expression
        order = parts(expression)
        refused = [self._blame.false_part(expression, candidate.driver, candidate.device) for candidate in step.before]

        def rank(part: FalsePart) -> int:
            return order.index(part.text) if part.text in order else 0

        furthest = max(refused, key=rank).text
        saw: dict[str, dict[str, None]] = {}
        for part in refused:
            if part.text == furthest:
                for name, value in part.saw.items():
                    saw.setdefault(name, {})[value] = None
        return furthest, saw

    def names_of(self, class_name: str | None) -> PublishedNames:
        """The attributes and capacities that devices of a class, or all known ones (None), publish."""
        if class_name is None:
            return self._known.names
        if class_name not in self._names:
            devices = self.of_class(class_name) or ()
            self._names[class_name] = PublishedNames.of((device.driver, device.device) for device in devices)
        return self._names[class_name]


def _compiled(expression: str, environment: Environment) -> Selector | None:
    """The compiled expression; None if it does not compile, which is a finding of its own."""
    try:
        return compile_selector(expression, environment)
    except CompileError:
        return None


def _narrow(selectors: Iterable[Selector | None], devices: tuple[CandidateDevice, ...]) -> tuple[SelectorStep, ...]:
    """One step for each selector, until no device is left."""
    steps: list[SelectorStep] = []
    for selector in selectors:
        steps.append(_step(selector, devices))
        devices = steps[-1].after
        if not devices:
            break
    return tuple(steps)


def _step(selector: Selector | None, devices: tuple[CandidateDevice, ...]) -> SelectorStep:
    """Evaluates one selector on devices."""
    after: list[CandidateDevice] = []
    failed: list[tuple[CandidateDevice, EvaluationError]] = []
    for device in devices:
        try:
            if selector is None or selector.matches(device.driver, device.device):
                after.append(device)
        except EvaluationError as error:
            failed.append((device, error))
    return SelectorStep(selector, devices, tuple(after), tuple(failed))
