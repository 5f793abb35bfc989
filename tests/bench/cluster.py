# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.cluster FILE [--nodes 1000] [--pods 5000]`: a large cluster, as `dra-dryrun snapshot -o json`
writes one.

Of 20 nodes, 12 have 8 H100 and the network interfaces of another driver, 3 have 4 L40S, 2 have 8 H100 with 4 of them in
MIG mode, and one each has L40S with shares, A100 for virtual machines, and GB200. Pods of Jobs, Deployments,
StatefulSets and virtual machines hold devices; other pods hold none. A few pods are pending, and a few GPUs are
unhealthy. The same numbers give the same file.

GPU 5 of node-1 belongs to a pod of its own, and all of node-2 to one pod of a Job.
"""

import argparse
import itertools
import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from dra_driver.dryrun.nodetypes import classes_with_resources, like, simulated_nodes
from dra_driver.dryrun.snapshot import encoded, written
from dra_driver.kube.resource import (
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
    Device,
    DeviceClaim,
    DeviceRequest,
    DeviceRequirements,
    DeviceTaint,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
    Quantity,
    ResourceClaim,
    ResourcePool,
    ResourceSlice,
)
from dra_driver.kube.resource.codec import V1, encode_claim_spec
from dra_driver.scheduler.pods import READ

JSON = dict[str, Any]

DRIVER: Final = "gpu.nvidia.com"
NETWORK_DRIVER: Final = "dra.net"
_FAULTS: Final = 47
"""Of so many nodes, one has an unhealthy GPU."""
_HASH_LABEL: Final = "pod-template-hash"
_START: Final = datetime(2026, 11, 1, tzinfo=UTC)
_TYPES: Final = (
    *("h100x8", "h100x8", "h100x8", "h100x8-mixed", "l40sx4", "h100x8", "h100x8", "h100x8", "l40sx4-shares", "l40sx4"),
    *("h100x8", "h100x8", "h100x8", "h100x8-mixed", "a100-80x4-vfio", "h100x8", "h100x8", "h100x8", "l40sx4"),
    "gb200x4",
)
"""The types of 20 nodes one after the other."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods of an owner, each with one claim for `count` devices of a class. Without a class, pods hold no device."""

    name: str
    namespace: str
    owner: str
    device_class: str = ""
    count: int = 1
    selector: str = ""
    cpu: str = "2"
    memory: str = "8Gi"
    priority: int = 0

    @property
    def requirements(self) -> DeviceRequirements:
        """What the claim of a pod requires."""
        selectors = (self.selector,) if self.selector else ()
        share = {"memory": Quantity.parse("10Gi")} if self.name == "embeddings" else {}
        return DeviceRequirements(self.device_class, selectors, count=self.count, capacity_requests=share)

    @property
    def spec(self) -> DeviceClaim:
        """The spec of the claim of a pod."""
        return DeviceClaim((DeviceRequest("gpu", exactly=self.requirements),))


def _with_profile(profile: str) -> str:
    return f"device.attributes['{DRIVER}'].profile == '{profile}'"


_MODEL: Final = "device.attributes['gpu.nvidia.com'].productName == '{}'"
_H100: Final = _MODEL.format("NVIDIA H100 80GB HBM3")
_L40S: Final = _MODEL.format("NVIDIA L40S")
TRAINING: Final = Workload("train", "research", "Job", DRIVER, 8, _H100, "96", "800Gi", 100)
CHAT: Final = Workload("chat", "serving", "ReplicaSet", DRIVER, 1, _H100, "8", "64Gi", 1000)
TUNING: Final = Workload("tune", "research", "Job", DRIVER, 2, _H100, "16", "128Gi")
EVALUATION: Final = Workload("evaluate", "research", "Job", DRIVER, 4, _H100, "32", "256Gi")
SPEECH: Final = Workload("speech", "serving", "ReplicaSet", DRIVER, 1, _L40S, "4", "32Gi", 1000)
RENDERING: Final = Workload("render", "studio", "Job", DRIVER, 4, _L40S, "16", "64Gi")
NOTEBOOK: Final = Workload("notebook", "students", "StatefulSet", "mig.nvidia.com", 1, _with_profile("1g.10gb"))
COURSE: Final = Workload("course", "students", "StatefulSet", "mig.nvidia.com", 1, _with_profile("2g.20gb"))
SEARCH: Final = Workload("search", "serving", "ReplicaSet", "mig.nvidia.com", 1, _with_profile("3g.40gb"))
EMBEDDINGS: Final = Workload("embeddings", "serving", "ReplicaSet", DRIVER, 1, _L40S)
DESKTOP: Final = Workload("desktop", "studio", "VirtualMachineInstance", "vfio.gpu.nvidia.com", 1, "", "8", "64Gi")
DOMAIN: Final = Workload("pretrain", "research", "Job", DRIVER, 4, _MODEL.format("NVIDIA GB200"), "64", "400Gi", 100)
WEB: Final = Workload("web", "serving", "ReplicaSet")

_H100_NODES: Final = (
    (CHAT,) * 8,
    (TRAINING,),
    (TRAINING,),
    (CHAT,) * 5,
    (TUNING, TUNING, CHAT),
    (TRAINING,),
    (EVALUATION, TUNING),
    (TRAINING,),
    (CHAT,) * 8,
    (),
)
"""The workloads on ten nodes with 8 H100 each."""
_ON: Final = {
    "l40sx4": (SPEECH,) * 3,
    "l40sx4-shares": (EMBEDDINGS,) * 12,
    "h100x8-mixed": (*(CHAT,) * 3, *(SEARCH, COURSE, NOTEBOOK, NOTEBOOK) * 2, *(COURSE,) * 3, *(NOTEBOOK,) * 4),
    "a100-80x4-vfio": (DESKTOP,) * 3,
    "gb200x4": (DOMAIN,),
}
"""The workloads on each node of the other types."""
_PENDING: Final = (*(RENDERING,) * 10, *(TRAINING,) * 10)


class BenchCluster:
    """The objects of the cluster as JSON, as they are made."""

    def __init__(self) -> None:
        self.pods: list[JSON] = []
        self.claims: list[ResourceClaim] = []
        self._counts: dict[Workload, int] = defaultdict(int)

    def fill(self, node: str, devices: Sequence[tuple[Device, str]], workloads: Sequence[Workload]) -> None:
        """Place a pod of each workload on a node: it gets the first free devices that match.

        `devices` are the node's devices with their pools. A pod for which there are not enough devices is left out.
        """
        taken: set[str] = set()
        consumed: dict[tuple[str, str], int] = defaultdict(int)
        shares: dict[str, int] = defaultdict(int)
        for workload in workloads:
            found: list[tuple[Device, str]] = []
            for device, pool in devices:
                if len(found) == workload.count:
                    break
                if device.name in taken or not _matches(workload, device) or _conflicts(device, consumed):
                    continue
                if device.allow_multiple_allocations:
                    shares[device.name] += 1
                    taken |= {device.name} if shares[device.name] == 3 else set()  # the fourth share stays free
                else:
                    taken.add(device.name)
                for consumption in device.consumes_counters:
                    for counter in consumption.counters:
                        consumed[consumption.counter_set, counter] += 1
                found.append((device, pool))
            if len(found) == workload.count:
                self.add(workload, node, found)

    def add(self, workload: Workload, node: str = "", devices: Sequence[tuple[Device, str]] = ()) -> None:
        """Add a pod, which is pending without a node, and its claim."""
        number = self._counts[workload]
        self._counts[workload] += 1
        created = _time(len(self.pods))
        owner = _owner(workload, number)
        name = f"{owner.name}-{number % 100}" if workload.owner == "StatefulSet" else f"{owner.name}-{_word(number)}"
        meta = {
            "name": name,
            "namespace": workload.namespace,
            "uid": _uid("pod", workload.namespace, name),
            "labels": _labels(workload),
            "creationTimestamp": created,
            "ownerReferences": [_reference(owner)],
        }
        requests = {"cpu": workload.cpu, "memory": workload.memory}
        container: JSON = {"name": "main", "resources": {"requests": requests}}
        spec: JSON = {"containers": [container], "priority": workload.priority}
        scheduled = {"type": "PodScheduled", "status": "True" if node else "False"}
        status: JSON = {"phase": "Pending", "qosClass": "Burstable", "conditions": [scheduled]}
        if node:
            spec["nodeName"] = node
            status |= {"phase": "Running", "startTime": created}
        else:
            scheduled["reason"] = "Unschedulable"
        if workload.device_class:
            claim = self._claim(workload, meta, node, devices)
            template = f"{workload.name}-gpus"
            container["resources"]["claims"] = [{"name": "gpus"}]
            spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
            status["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": claim.metadata.name}]
            self.claims.append(claim)
        self.pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status})

    def templates(self) -> Iterator[JSON]:
        """The templates of the claims."""
        for workload in self._counts:
            if workload.device_class:
                metadata = {"name": f"{workload.name}-gpus", "namespace": workload.namespace}
                spec = {"spec": encode_claim_spec(workload.spec, V1)}
                yield {
                    "apiVersion": V1.api_version,
                    "kind": "ResourceClaimTemplate",
                    "metadata": metadata,
                    "spec": spec,
                }

    def _claim(self, workload: Workload, pod: JSON, node: str, devices: Sequence[tuple[Device, str]]) -> ResourceClaim:
        name = f"{pod['name']}-gpus-{_word(len(self.claims))}"
        owner = OwnerReference("v1", "Pod", pod["name"], pod["uid"], controller=True)
        meta = ObjectMeta(
            name,
            workload.namespace,
            _uid("claim", workload.namespace, name),
            creation_timestamp=pod["creationTimestamp"],
            owner_references=(owner,),
        )
        if not devices:
            return ResourceClaim(meta, workload.spec)
        share = workload is EMBEDDINGS
        amounts = {"memory": Quantity.parse("10Gi"), "shares": Quantity.of(1)} if share else {}
        results = tuple(
            AllocatedDevice(
                "gpu",
                DRIVER,
                pool,
                device.name,
                share_id=_uid("share", name, device.name) if share else None,
                consumed_capacity=amounts,
            )
            for device, pool in devices
        )
        fields = (NodeSelectorRequirement("metadata.name", "In", (node,)),)
        allocation = AllocationResult(results, node_selector=NodeSelector((NodeSelectorTerm((), fields),)))
        return ResourceClaim(
            meta, workload.spec, allocation, (ConsumerReference("pods", str(pod["name"]), str(pod["uid"])),)
        )


def objects(nodes: int, pods: int) -> list[JSON]:
    """The objects of the cluster. Node and pod numbers begin at 1 and 0.

    There are more than `pods` pods if more hold devices on the nodes.
    """
    cluster = BenchCluster()
    models = {name: simulated_nodes(name, 1) for name in dict.fromkeys(_TYPES)}
    slices: list[ResourceSlice] = []
    node_objects: list[JSON] = []
    h100_nodes = itertools.count()
    for number, node_type in zip(range(1, nodes + 1), itertools.cycle(_TYPES), strict=False):
        name = f"node-{number}"
        model = models[node_type]
        own = [like(slice_, name) for slice_ in model if isinstance(slice_, ResourceSlice)]
        if number % _FAULTS == 0:
            own = _with_fault(own, number)
        (node,) = (object_ for object_ in model if isinstance(object_, Node))
        devices = [(device, slice_.pool.name) for slice_ in own if slice_.driver == DRIVER for device in slice_.devices]
        if node_type == "h100x8":
            workloads: Sequence[Workload] = _H100_NODES[next(h100_nodes) % len(_H100_NODES)]
            own.append(_network(name))
        else:
            workloads = _ON[node_type]
        cluster.fill(name, devices, workloads)
        slices += own
        node_objects.append(_node(node, name, node_type, number))
    for workload in _PENDING:
        cluster.add(workload)
    for number in range(max(0, pods - len(cluster.pods))):
        cluster.add(WEB, f"node-{number % nodes + 1}")
    namespaces = sorted({pod["metadata"]["namespace"] for pod in cluster.pods})
    made = [
        *encoded([*classes_with_resources(), *slices, *cluster.claims]),
        *node_objects,
        *cluster.pods,
        *cluster.templates(),
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in namespaces),
    ]
    kinds = {object_["kind"] for object_ in made}
    none = [{"apiVersion": version, "kind": f"{kind}List", "items": []} for version, kind in READ if kind not in kinds]
    return [*made, *none]


def _with_fault(slices: Sequence[ResourceSlice], number: int) -> list[ResourceSlice]:
    """The slices of a node, with a health taint on one device of the first slice. It came after the pods."""
    first = next(index for index, slice_ in enumerate(slices) if slice_.devices)
    devices = list(slices[first].devices)
    at = number % len(devices)
    taint = DeviceTaint(f"{DRIVER}/xid", "NoSchedule", "48", _time(10_000 + number))
    devices[at] = replace(devices[at], taints=(taint,))
    return [*slices[:first], replace(slices[first], devices=tuple(devices)), *slices[first + 1 :]]


def _network(node: str) -> ResourceSlice:
    """The network interfaces of a node, as another driver publishes them."""
    devices = tuple(
        Device(
            f"mlx5-{number}", {"ifName": f"ib{number}", "rdma": True, "resource.kubernetes.io/numaNode": number // 4}
        )
        for number in range(8)
    )
    pool = ResourcePool(node, 1, 1)
    return ResourceSlice(ObjectMeta(f"{node}-{NETWORK_DRIVER}"), NETWORK_DRIVER, pool, node, devices=devices)


def _node(model: Node, name: str, node_type: str, number: int) -> JSON:
    labels = {
        **model.metadata.labels,
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": node_type,
        "topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}",
    }
    amounts = {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "1Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def _matches(workload: Workload, device: Device) -> bool:
    """Whether the device is of the class and has the profile of the workload. The model is that of the node."""
    kind = {"mig.nvidia.com": "mig", "vfio.gpu.nvidia.com": "vfio"}.get(workload.device_class, "gpu")
    if device.attributes.get("type") != kind:
        return False
    return kind != "mig" or f"'{device.attributes.get('profile')}'" in workload.selector


def _conflicts(device: Device, consumed: dict[tuple[str, str], int]) -> bool:
    """Whether the device needs a memory slice, or all memory of a GPU, that another device consumes."""
    return any(
        consumed[consumption.counter_set, counter]
        for consumption in device.consumes_counters
        for counter in consumption.counters
        if counter.startswith("memory-slice") or set(consumption.counters) == {"memory"}
    )


def _owner(workload: Workload, number: int) -> OwnerReference:
    """The controller of a pod. A Job has 4 pods, a StatefulSet 100, a ReplicaSet all, a virtual machine one."""
    name = {
        "Job": f"{workload.name}-{number // 4}",
        "StatefulSet": f"{workload.name}-{number // 100}",
        "ReplicaSet": f"{workload.name}-{_labels(workload).get(_HASH_LABEL)}",
        "VirtualMachineInstance": f"{workload.name}-{number}",
    }[workload.owner]
    versions = {"Job": "batch/v1", "VirtualMachineInstance": "kubevirt.io/v1"}
    version = versions.get(workload.owner, "apps/v1")
    return OwnerReference(version, workload.owner, name, _uid(workload.owner, name), controller=True)


def _labels(workload: Workload) -> dict[str, str]:
    """The labels of the pods. Those of a Deployment have the hash with which the name of its ReplicaSet ends."""
    labels = {"app": workload.name}
    return labels | {_HASH_LABEL: _word(len(workload.name))} if workload.owner == "ReplicaSet" else labels


def _reference(owner: OwnerReference) -> JSON:
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }


def _uid(*parts: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, ".".join(parts)))


def _word(number: int) -> str:
    """Five letters and digits, as in the names of pods."""
    return uuid.uuid5(uuid.NAMESPACE_OID, str(number)).hex[:5]


def _time(number: int) -> str:
    return (_START + timedelta(minutes=5 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where the snapshot is written")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000)
    options = parser.parse_args()
    made = objects(options.nodes, options.pods)
    options.file.write_text(written(made, "json"), encoding="utf-8")
    counts = {kind: sum(object_["kind"] == kind for object_ in made) for kind in ("Node", "Pod", "ResourceClaim")}
    print(json.dumps({**counts, "bytes": options.file.stat().st_size}))


if __name__ == "__main__":
    main()
