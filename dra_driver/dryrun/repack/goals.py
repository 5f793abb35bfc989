# SPDX-License-Identifier: Apache-2.0
"""Units of demand that are not manifests: free devices of a kind, whole GPUs, and whole nodes.

A whole GPU is a device of type `gpu`, or of a GPU in MIG mode the MIG device that takes all of its memory slices. GPUs
that are shared do not count. A whole node is all of these devices of a node together. Each goal is a claim with a class
of its own, so the allocator decides about it as about every claim.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ...kube.resource import (
    ALL,
    EXACT_COUNT,
    Device,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from ...kube.resource.codec import Decoded
from ...process.command import InputError
from ...scheduler.repack import Unit
from ..report.picture import attribute

_CLASS: Final = "repack.gpu.nvidia.com"
GPU: Final = "gpu"
MOST_UNITS: Final = 64


@dataclass(frozen=True, slots=True)
class Goal:
    """`count` devices of a kind (a MIG profile, or `gpu`), or `count` whole nodes if `whole_nodes` is set. With a
    `model`, only GPUs of this model count.
    """

    kind: str
    count: int
    whole_nodes: bool = False
    model: str = ""

    @property
    def words(self) -> str:
        """The goal in words: `2 devices 7g.80gb`."""
        if self.whole_nodes:
            return f"{self.count} whole node{'s' * (self.count != 1)}"
        if self.kind == GPU:
            return f"{self.count} whole GPU{'s' * (self.count != 1)}"
        return f"{self.count} device{'s' * (self.count != 1)} {self.kind}"


def parse_free(text: str) -> Goal:
    """The goal of `7g.80gb=2`. Raises InputError."""
    kind, equals, number = text.rpartition("=")
    if not equals:
        kind, number = text, "1"
    if not kind or not (number.isascii() and number.isdigit()) or not 1 <= int(number) <= MOST_UNITS:
        raise InputError(f"--free {text}: write PROFILE=COUNT with a count of 1 to {MOST_UNITS}, such as 7g.80gb=2")
    return Goal(kind, int(number))


def classes_for(goals: Sequence[Goal], objects: Iterable[Decoded]) -> list[DeviceClass]:
    """A class for each goal. Raises InputError if no slice has such devices."""
    slices = [slice_ for slice_ in objects if isinstance(slice_, ResourceSlice)]
    found = []
    for number, goal in enumerate(goals):
        drivers = sorted(
            {slice_.driver for slice_ in slices if any(_is_of(goal, device, slice_) for device in slice_.devices)}
        )
        if not drivers:
            known = sorted({attribute(device, "profile") for slice_ in slices for device in slice_.devices} - {""})
            what = f"no device has the profile {goal.kind}" if goal.kind != GPU else "there is no GPU"
            raise InputError(f"{what} (there are {', '.join(known) or 'no MIG devices'})")
        expression = " || ".join(f"({_selector(goal, driver, slices)})" for driver in drivers)
        found.append(DeviceClass(ObjectMeta(name=f"{_CLASS}-{number}"), (expression,)))
    return found


def units_for(goals: Sequence[Goal], classes: Sequence[DeviceClass]) -> list[Unit]:
    """The claims of the goals, without pods."""
    return [
        Unit(None, (_claim(goal, device_class.metadata.name),))
        for goal, device_class in zip(goals, classes, strict=True)
        for _ in range(goal.count)
    ]


def _claim(goal: Goal, class_name: str) -> ResourceClaim:
    mode = ALL if goal.whole_nodes else EXACT_COUNT
    request = DeviceRequest("device", exactly=DeviceRequirements(class_name, allocation_mode=mode))
    return ResourceClaim(ObjectMeta(name="goal", namespace="default"), DeviceClaim((request,)))


def _is_of(goal: Goal, device: Device, slice_: ResourceSlice) -> bool:
    if goal.model not in ("", attribute(device, "productName")):
        return False
    if goal.kind != GPU:
        return attribute(device, "profile") == goal.kind
    if device.allow_multiple_allocations:
        return False
    return attribute(device, "type") == GPU or attribute(device, "profile") in _largest([slice_])


def _selector(goal: Goal, driver: str, slices: Sequence[ResourceSlice]) -> str:
    """The CEL expression for the devices of a driver. A GPU that is shared is not given as a whole."""
    attributes = f"device.attributes['{driver}']"
    is_driver = f"device.driver == '{driver}'"
    if goal.kind != GPU:
        profile = goal.kind.replace("\\", "").replace("'", "")
        return f"{is_driver} && 'profile' in {attributes} && {attributes}.profile == '{profile}'"
    kinds = [f"('type' in {attributes} && {attributes}.type == '{GPU}')"]
    largest = sorted(_largest([slice_ for slice_ in slices if slice_.driver == driver]))
    if largest:
        profiles = ", ".join(f"'{profile}'" for profile in largest)
        kinds.append(f"('profile' in {attributes} && {attributes}.profile in [{profiles}])")
    if any(
        device.allow_multiple_allocations for slice_ in slices if slice_.driver == driver for device in slice_.devices
    ):
        is_driver += " && !device.allowMultipleAllocations"
    model = f" && 'productName' in {attributes} && {attributes}.productName == '{goal.model}'" if goal.model else ""
    return f"{is_driver}{model} && ({' || '.join(kinds)})"


def large_devices(objects: Iterable[Decoded]) -> list[Goal]:
    """A goal for each model of GPUs: one whole GPU."""
    slices = (slice_ for slice_ in objects if isinstance(slice_, ResourceSlice))
    models = {
        attribute(device, "productName")
        for slice_ in slices
        for device in slice_.devices
        if _is_gpu(device) and not device.allow_multiple_allocations
    }
    return [Goal(GPU, 1, model=model) for model in sorted(models) if model and "'" not in model]


def _is_gpu(device: Device) -> bool:
    return attribute(device, "type") == GPU or bool(attribute(device, "profile"))


def _largest(slices: Iterable[ResourceSlice]) -> set[str]:
    """The profiles that take the most of a GPU which has no device of type `gpu`."""
    best: dict[tuple[str, str], tuple[int, str]] = {}
    whole: set[tuple[str, str]] = set()
    for slice_ in slices:
        for device in slice_.devices:
            for consumption in device.consumes_counters:
                key = (slice_.pool.name, consumption.counter_set)
                if attribute(device, "type") == GPU:
                    whole.add(key)
                size = sum(amount.nanos > 0 for amount in consumption.counters.values())
                best[key] = max(best.get(key, (0, "")), (size, attribute(device, "profile")))
    return {profile for key, (_, profile) in best.items() if key not in whole and profile}
