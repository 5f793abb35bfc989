# SPDX-License-Identifier: Apache-2.0
"""Facts about GPUs -> devices as DRA publishes them: names, attributes, capacities, counters.

Names, attributes and counters are those of NVIDIA's DRA driver, so that claims written for it work; `model`
is added, and `uuid`, `profile` and `parentUUID` are on every device that has one. A GPU in MIG mode is
published as all its possible MIG instances, which draw on one counter set so that only placements that fit
together can be allocated; a GPU that is not is published whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..resource import (
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    Format,
    Quantity,
    Version,
)
from ..resource.limits import ATTRIBUTE_VALUE_BYTES
from ..resource.semver import from_dotted
from .inventory import Gpu, Inventory, MigProfile
from .nvml import GpuInstanceProfile, Placement
from .profiles import device_suffix

GPU_TYPE = "gpu"
MIG_TYPE = "mig"

_NVIDIA = "NVIDIA "


@dataclass(frozen=True, slots=True)
class GpuDevices:
    """What one GPU contributes to its node's pool. `counter_set` is None for a GPU that is not partitionable."""

    gpu: Gpu
    devices: tuple[Device, ...]
    counter_set: CounterSet | None = None


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """A MIG device that a name stands for: where it is or will be."""

    gpu: Gpu
    profile: MigProfile
    placement: Placement


def describe(inventory: Inventory) -> tuple[GpuDevices, ...]:
    """The devices of every GPU, in the inventory's order."""
    common = _driver_attributes(inventory)
    return tuple(_mig_devices(gpu, common) if gpu.in_mig_mode else _whole_gpu(gpu, common) for gpu in inventory.gpus)


def gpu_name(gpu: Gpu) -> str:
    """`gpu-<minor>`."""
    return f"gpu-{gpu.minor}"


def mig_name(gpu: Gpu, profile: MigProfile, placement: Placement) -> str:
    """`gpu-<minor>-mig-<profile>-<the driver's profile id>-<first memory slice>`."""
    return f"{gpu_name(gpu)}-mig-{device_suffix(profile.name)}-{profile.info.id}-{placement.start}"


def mig_placements(gpu: Gpu) -> Iterable[tuple[str, MigPlacement]]:
    """Every MIG device that the GPU could have, by device name."""
    for profile in gpu.mig_profiles:
        for placement in profile.placements:
            yield mig_name(gpu, profile, placement), MigPlacement(gpu, profile, placement)


def model_name(product_name: str) -> str:
    """`H100-80GB-HBM3` for `NVIDIA H100 80GB HBM3`: the product without its maker, in one word."""
    return product_name.removeprefix(_NVIDIA).replace(" ", "-")


def _whole_gpu(gpu: Gpu, common: Mapping[str, AttributeValue]) -> GpuDevices:
    attributes = {"type": GPU_TYPE, "uuid": gpu.uuid, **_gpu_attributes(gpu), **common}
    capacity = {} if gpu.memory is None else {"memory": _bytes(gpu.memory)}
    return GpuDevices(gpu, (Device(gpu_name(gpu), attributes=attributes, capacity=capacity),))


def _mig_devices(gpu: Gpu, common: Mapping[str, AttributeValue]) -> GpuDevices:
    if not gpu.mig_profiles:
        return GpuDevices(gpu, ())
    counters = CounterSet(f"{gpu_name(gpu)}-counter-set", _counter_totals(gpu.mig_profiles))
    shared = {"type": MIG_TYPE, "parentUUID": gpu.uuid, **_gpu_attributes(gpu), **common}
    devices = [
        Device(
            name=name,
            attributes={**shared, "profile": mig.profile.name},
            capacity=_profile_capacity(mig.profile.info),
            consumes_counters=(_consumption(counters.name, mig),),
        )
        for name, mig in mig_placements(gpu)
    ]
    return GpuDevices(gpu, tuple(sorted(devices, key=lambda device: device.name)), counters)


def _driver_attributes(inventory: Inventory) -> dict[str, AttributeValue]:
    cuda = inventory.cuda_driver_version
    versions = {
        "driverVersion": from_dotted(inventory.driver_version),
        "cudaDriverVersion": None if cuda is None else Version(f"{cuda // 1000}.{cuda % 1000 // 10}.0"),
    }
    return {name: version for name, version in versions.items() if version is not None}


def _gpu_attributes(gpu: Gpu) -> dict[str, AttributeValue]:
    """What a GPU and its MIG devices have in common; what is unknown is left out."""
    capability = gpu.compute_capability
    attributes: dict[str, AttributeValue | None] = {
        "productName": _fitting(gpu.product_name),
        "model": None if gpu.product_name is None else _fitting(model_name(gpu.product_name)),
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "cudaComputeCapability": None if capability is None else Version(f"{capability[0]}.{capability[1]}.0"),
        "addressingMode": gpu.addressing_mode,
        "resource.kubernetes.io/pciBusID": gpu.pci_address,
        "resource.kubernetes.io/pcieRoot": gpu.pcie_root,
        "resource.kubernetes.io/numaNode": gpu.numa_node,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _fitting(text: str | None) -> str | None:
    """The text cut to what an attribute may hold."""
    if text is None:
        return None
    return text.encode()[:ATTRIBUTE_VALUE_BYTES].decode(errors="ignore")


def _engines(info: GpuInstanceProfile) -> dict[str, int]:
    """What an instance of a profile has besides memory, by capacity name."""
    return {
        "multiprocessors": info.multiprocessors,
        "copyEngines": info.copy_engines,
        "decoders": info.decoders,
        "encoders": info.encoders,
        "jpegEngines": info.jpeg_engines,
        "ofaEngines": info.ofa_engines,
    }


def _bytes(amount: int) -> DeviceCapacity:
    return DeviceCapacity(Quantity.of(amount, Format.BINARY_SI))


def _profile_capacity(info: GpuInstanceProfile) -> dict[str, DeviceCapacity]:
    engines = {name: DeviceCapacity(Quantity.of(count)) for name, count in _engines(info).items()}
    return {"memory": _bytes(info.memory_mib << 20), **engines}


def _counters(info: GpuInstanceProfile) -> dict[str, Quantity]:
    """What an instance of the profile draws, memory slices aside."""
    counters = {_counter_name(name): Quantity.of(count) for name, count in _engines(info).items()}
    return {"memory": Quantity.of(info.memory_mib << 20, Format.BINARY_SI), **counters}


def _counter_name(capacity: str) -> str:
    """`copy-engines` for `copyEngines`."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in capacity)


def _slice_counter(index: int) -> str:
    return f"memory-slice-{index}"


def _counter_totals(profiles: tuple[MigProfile, ...]) -> dict[str, Quantity]:
    """The most that any profile draws of each counter. Counters that nobody draws on are left out."""
    drawn = [_counters(profile.info) for profile in profiles]
    totals = {name: max(counters[name] for counters in drawn) for name in drawn[0]}
    ends = (placement.start + placement.size for profile in profiles for placement in profile.placements)
    slices = max(ends, default=0)
    return {
        **{name: total for name, total in totals.items() if total.nanos},
        **{_slice_counter(index): Quantity.of(1) for index in range(slices)},
    }


def _consumption(counter_set: str, mig: MigPlacement) -> CounterConsumption:
    drawn = {name: amount for name, amount in _counters(mig.profile.info).items() if amount.nanos}
    slices = range(mig.placement.start, mig.placement.start + mig.placement.size)
    return CounterConsumption(counter_set, {**drawn, **{_slice_counter(index): Quantity.of(1) for index in slices}})
