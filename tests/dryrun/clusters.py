# SPDX-License-Identifier: Apache-2.0
"""Clusters to ask about: nodes with GPUs in MIG mode, and claims that hold some of their devices."""

import functools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from dra_driver.dryrun.inventory import CLASSES, with_nodes_of_slices
from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    ObjectMeta,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.kube.resource.codec import Decoded
from dra_driver.scheduler.allocator import Cluster

DRIVER = "gpu.nvidia.com"


def with_defaults(objects: Iterable[Decoded]) -> list[Decoded]:
    """The objects, the driver's classes where there is no class of that name, and a Node for each node name."""
    given = list(objects)
    classes = {each.metadata.name for each in given if isinstance(each, DeviceClass)}
    return with_nodes_of_slices([*given, *(each for each in CLASSES if each.metadata.name not in classes)])


@functools.cache
def node(number: int, gpus: int = 1, model: str = "A30-PCIE-24GB", mig: bool = True) -> tuple[Decoded, ...]:
    """`new-a30-<number>` (the model's first word) with its slices."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{model.partition('-')[0]}.yaml"
        lines = ["driverVersion: 570.158.01", 'cudaVersion: "12.8"', "gpus:"]
        lines += [
            f"- {{model: {model}, mig: {str(mig).lower()}, numaNodes: [0], pciAddresses: ['0000:{gpu + 16:x}:00.0'],"
            f" pcieRoots: ['pci0000:0{gpu}']}}"
            for gpu in range(gpus)
        ]
        file.write_text("\n".join(lines), encoding="utf-8")
        made = simulated_nodes(str(file), number)
        first = len(made) // number * (number - 1)
        return tuple(made[first:])


def cluster(objects: Sequence[Decoded]) -> Cluster:
    """The cluster of the objects, with the driver's classes."""
    return Cluster.of(with_defaults(objects))


def holding(name: str, pool: str, *devices: str) -> ResourceClaim:
    """A claim that holds devices."""
    results = tuple(AllocatedDevice("gpu", DRIVER, pool, device) for device in devices)
    return ResourceClaim(ObjectMeta(name=name, namespace="default"), DeviceClaim(), AllocationResult(results))


def wanting(profile: str, count: int = 1) -> ResourceClaim:
    """A pending claim for MIG devices."""
    selector = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    requirements = DeviceRequirements("mig.nvidia.com", (selector,), count=count)
    spec = DeviceClaim((DeviceRequest("gpu", exactly=requirements),))
    return ResourceClaim(ObjectMeta(name="wanted", namespace="default"), spec)


def devices_of(objects: Sequence[Decoded]) -> list[tuple[str, str, str]]:
    """(pool, device, profile) of every device."""
    return [
        (one.pool.name, device.name, str(device.attributes.get("profile", "")))
        for one in objects
        if isinstance(one, ResourceSlice)
        for device in one.devices
    ]
