# SPDX-License-Identifier: Apache-2.0
"""Short ways to write gangs and clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dra_driver.kube.resource import DeviceClass, Node, ObjectMeta, ResourceClaim, ResourceSlice
from dra_driver.scheduler.allocator import Cluster
from dra_driver.scheduler.gangs import Gang, GangMember, PodGroup, Policy
from dra_driver.scheduler.pods import ClusterNode, Pod, PodDecoder, Snapshot
from tests.scheduler.allocator.build import ANY_CLASS, DRIVER, gpu, slice_of, wants
from tests.scheduler.allocator.build import claim as claim_of

JSON = dict[str, Any]
AMOUNTS = {"cpu": 64_000, "memory": 1 << 40, "pods": 110}


def node(name: str, labels: Mapping[str, str] | None = None, **amounts: int) -> ClusterNode:
    """A node with 64 CPUs."""
    meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})})
    return ClusterNode(Node(meta), {**AMOUNTS, **amounts})


def gpus(node_name: str, count: int) -> ResourceSlice:
    """The slice of a node with `count` whole GPUs."""
    made = [gpu(f"gpu-{index}", attributes={"index": index}) for index in range(count)]
    return slice_of(*made, name=f"{node_name}-slice", pool=node_name, node_name=node_name)


def halves(node_name: str, count: int = 1) -> tuple[ResourceSlice, ResourceSlice]:
    """GPUs that are allocated whole or as two halves, the whole GPU first."""
    devices = []
    for index in range(count):
        takes = f"gpu-{index}"
        devices.append(gpu(f"whole-{index}", attributes={"size": "whole"}, takes={takes: {"parts": 2}}))
        devices += [
            gpu(f"half-{index}-{half}", attributes={"size": "half"}, takes={takes: {"parts": 1}}) for half in range(2)
        ]
    counters = {f"gpu-{index}": {"parts": 2} for index in range(count)}
    place: JSON = {"pool": node_name, "node_name": node_name, "count": 2}
    return (
        slice_of(name=f"{node_name}-counters", counters=counters, **place),
        slice_of(*devices, name=f"{node_name}-slice", **place),
    )


def cluster(
    nodes: Sequence[ClusterNode], *slices: ResourceSlice, classes: Sequence[DeviceClass] = (ANY_CLASS,)
) -> Snapshot:
    """A cluster without pods."""
    made = Cluster(tuple(slices), tuple(classes), tuple(each.node for each in nodes))
    return Snapshot(made, tuple(nodes))


def pod(name: str, *, cpu: int = 0, **fields: Any) -> Pod:
    """A pod that requests `cpu` thousandths."""
    spec = {"containers": [], **fields.pop("spec", {})}
    made = PodDecoder().decode({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    return replace(made, amounts={"cpu": cpu, "pods": 1} if cpu else {}, **fields)


def member(name: str, *claims: ResourceClaim, **fields: Any) -> GangMember:
    """A pod of a gang."""
    return GangMember(pod(name, **fields), claims)


def wanting(name: str, count: int = 1, *selectors: str) -> ResourceClaim:
    """A pending claim for devices."""
    return claim_of(name=name, gpu=wants(count, *selectors))


def whole_or_half(name: str) -> ResourceClaim:
    """A claim that prefers a whole GPU to a half."""
    size = f"device.attributes['{DRIVER}'].size"
    return claim_of(name=name, gpu=[wants(1, f"{size} == 'whole'"), wants(1, f"{size} == 'half'")])


def gang(*members: GangMember, least: int | None = -1, topology: str = "", running: Sequence[Pod] = ()) -> Gang:
    """A gang all of whose members must run, unless `least` says otherwise."""
    needed = len(members) + len(running) if least == -1 else least
    return Gang("gang", PodGroup("default", "gang", Policy(needed, topology)), members, tuple(running))
