# SPDX-License-Identifier: Apache-2.0
"""The devices that a command line names: those of a node, a GPU, a MIG device, a model, and conditions on them."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from ...kube.resource import Device, DeviceTaint, ResourceSlice
from ...kube.resource.codec import Decoded
from ...kube.resource.device import AttributeList, from_dotted
from ...process.command import InputError
from ...scheduler.allocator import Features
from ...scheduler.allocator.selectors import compile_cel
from ...scheduler.cel import CompileError, EvaluationError
from ..explain import health_of
from ..report import listed

DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device."""

PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
_INDEX: Final = re.compile(r"(?:gpu-)?([0-9]+)")
_MODELS: Final = ("productName", "model")
ANY_FINDING: Final = "any"
"""The health reason that all health taints have."""


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device with the slice that publishes it. `node` is empty for a device that several nodes can use."""

    driver: str
    pool: str
    node: str
    device: Device

    @property
    def key(self) -> DeviceKey:
        """Driver, pool and name."""
        return self.driver, self.pool, self.device.name

    def __str__(self) -> str:
        return f"{self.node or self.pool}/{self.device.name}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user names: `targets`, any of which a device must be part of, and conditions, all of which it must meet.

    `targets` are the words NODE, NODE/GPU, NODE/DEVICE or MODEL. Without targets, all devices count. The conditions are
    a CEL expression, a version of the driver, and a health reason such as `xid` or `xid=79`.
    """

    targets: tuple[str, ...] = ()
    selector: str = ""
    driver_version: str = ""
    health: str = ""

    @property
    def words(self) -> str:
        """All of it in words, for texts."""
        conditions = [
            *([f"with {self.selector}"] if self.selector else []),
            *([f"with driver version {self.driver_version}"] if self.driver_version else []),
            *([f"with health finding {self.health}"] if self.health else []),
        ]
        return " ".join([listed(self.targets, 6) or "devices", *conditions])


@dataclass(frozen=True)
class PublishedDevices:
    """The devices of a cluster. Only the newest generation of each pool counts."""

    devices: tuple[PublishedDevice, ...]
    by_pool: dict[tuple[str, str], list[PublishedDevice]] = field(default_factory=dict)

    @staticmethod
    def of(objects: Iterable[Decoded]) -> "PublishedDevices":
        """The devices of the slices among the objects."""
        slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
        newest: dict[tuple[str, str], int] = {}
        for slice_ in slices:
            key = slice_.driver, slice_.pool.name
            newest[key] = max(newest.get(key, 0), slice_.pool.generation)
        found = PublishedDevices(
            tuple(
                PublishedDevice(slice_.driver, slice_.pool.name, slice_.node_name or device.node_name or "", device)
                for slice_ in slices
                if slice_.pool.generation == newest[slice_.driver, slice_.pool.name]
                for device in slice_.devices
            )
        )
        for published in found.devices:
            found.by_pool.setdefault((published.driver, published.pool), []).append(published)
        return found

    def find(self, wanted: Wanted, features: Features, where: str) -> list[PublishedDevice]:
        """The devices that the user names. Raises InputError if there are none."""
        found: dict[DeviceKey, PublishedDevice] = {}
        for target in wanted.targets:
            found.update({device.key: device for device in self._of_target(target, where)})
        devices = [device for device in self.devices if not wanted.targets or device.key in found]
        for condition in _conditions(wanted, features):
            devices = [device for device in devices if condition(device)]
        if not devices:
            raise InputError(f"no device of {where} is selected: {wanted.words}")
        return devices

    def _of_target(self, target: str, where: str) -> list[PublishedDevice]:
        nodes = {device.node for device in self.devices if device.node}
        node, slash, name = target.partition("/")
        if target in nodes:
            return [device for device in self.devices if device.node == target]
        if slash and node in nodes:
            return _of_gpu([device for device in self.devices if device.node == node], name, node)
        found = [] if slash else [device for device in self.devices if _is_model(device.device, target)]
        if found:
            return found
        known = sorted(nodes | {str(device.device.attributes.get("productName", "")) for device in self.devices} - {""})
        close = difflib.get_close_matches(node, known, n=3)
        hint = f"; similar: {', '.join(close)}" if close else f" (there are {listed(known, 6)})" if known else ""
        raise InputError(f"{target}: {where} has no such node and no such model{hint}")


def _of_gpu(devices: Sequence[PublishedDevice], name: str, node: str) -> list[PublishedDevice]:
    """All forms of a GPU of a node, or one device that is a part of a GPU. Raises InputError."""
    named = [device for device in devices if name in _names(device.device)]
    parts = [device for device in named if device.device.name == name and "parentUUID" in device.device.attributes]
    if parts:
        return parts
    index = _INDEX.fullmatch(name)
    if index is not None:
        named += [device for device in devices if _has_index(device.device.name, index[1])]
    ids = {id_ for device in named for id_ in _ids(device.device)}
    found = [device for device in devices if device in named or ids & _ids(device.device)]
    if not found:
        known = list(dict.fromkeys(device.device.name for device in devices))
        raise InputError(f"{node}/{name}: the node has no such GPU and no such device (it has {listed(known, 10)})")
    return found


def _has_index(name: str, index: str) -> bool:
    """Whether a device is the GPU with a number, or a part of it: `gpu-5`, `gpu-5-mig-…`, `gpu-vfio-5`."""
    return name in (f"gpu-{index}", f"gpu-vfio-{index}") or name.startswith((f"gpu-{index}-", f"gpu-vfio-{index}-"))


def _names(device: Device) -> Iterator[str]:
    """What a user may call a device."""
    yield device.name
    for name in ("uuid", PCI_BUS_ID):
        value = device.attributes.get(name)
        if isinstance(value, str):
            yield value


def _ids(device: Device) -> frozenset[str]:
    """What tells which GPUs a device is a part of."""
    values = [device.attributes.get(name) for name in ("uuid", "parentUUID", PCI_BUS_ID, "pciBusIDs")]
    texts = [value for value in values if isinstance(value, str)]
    many = [text for value in values if isinstance(value, AttributeList) for text in map(str, value.items)]
    return frozenset((*texts, *many))


def _is_model(device: Device, word: str) -> bool:
    """Whether a device is of a model: its whole name, a glob of it, or some of its words."""
    wanted = _plain(word)
    for attribute in _MODELS:
        value = device.attributes.get(attribute)
        if not isinstance(value, str):
            continue
        model = _plain(value)
        if fnmatchcase(model, wanted) or f"-{wanted}-" in f"-{model}-":
            return True
    return False


def _plain(model: str) -> str:
    return model.lower().replace(" ", "-")


def _conditions(wanted: Wanted, features: Features) -> Iterator[Callable[[PublishedDevice], bool]]:
    """The conditions on devices. Raises InputError."""
    if wanted.selector:
        try:
            predicate = compile_cel(wanted.selector, features)
        except CompileError as error:
            raise InputError(f"--selector: {error}") from None

        def selected(published: PublishedDevice) -> bool:
            try:
                return bool(predicate.matches(published.driver, published.device))
            except EvaluationError:
                return False  # a device of another driver, which lacks the attribute

        yield selected
    if wanted.driver_version:
        version = from_dotted(wanted.driver_version)
        pattern = str(version) if version is not None else wanted.driver_version
        yield lambda published: fnmatchcase(str(published.device.attributes.get("driverVersion", "")), pattern)
    if wanted.health:
        yield lambda published: any(
            _has_reason(taint.key, taint.value, wanted.health) for taint in _findings(published)
        )


def _findings(published: PublishedDevice) -> list[DeviceTaint]:
    return [taint for taint in published.device.taints if health_of(taint) is not None]


def _has_reason(key: str, value: str, reason: str) -> bool:
    """Whether a health taint is the reason: `any`, `xid` or `gpu.nvidia.com/xid`, or with its value, `xid=79`."""
    name, equals, wanted = reason.partition("=")
    return reason == ANY_FINDING or (name in (key, key.rpartition("/")[2]) and (not equals or value == wanted))
