# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster, one after the other, into a Snapshot and the Policies for new objects.

A cluster is read in pages: of each object only what decides scheduling is kept.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from ...kube.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ...kube.resource.codec import BY_API_VERSION, decode
from ..allocator import Cluster
from .admission import Policies
from .decode import PodDecoder, decode_cluster_node, decode_disruption_budget
from .objects import ClusterNode, DisruptionBudget
from .policies import decode_limit_range, decode_priority_class, decode_quota, decode_runtime_class
from .snapshot import Snapshot, Storage
from .storage import (
    decode_attach_limits,
    decode_storage_capacity,
    decode_storage_class,
    decode_tracks_capacity,
    decode_volume,
    decode_volume_claim,
)

C = TypeVar("C", ResourceClaim, ResourceClaimTemplate)

Object = Mapping[str, Any]

_DECODERS: Final[Mapping[tuple[str, str], Callable[[Object], object]]] = {
    ("v1", "Node"): decode_cluster_node,
    ("v1", "PersistentVolume"): decode_volume,
    ("v1", "PersistentVolumeClaim"): decode_volume_claim,
    ("v1", "LimitRange"): decode_limit_range,
    ("v1", "ResourceQuota"): decode_quota,
    ("policy/v1", "PodDisruptionBudget"): decode_disruption_budget,
    ("scheduling.k8s.io/v1", "PriorityClass"): decode_priority_class,
    ("node.k8s.io/v1", "RuntimeClass"): decode_runtime_class,
    ("storage.k8s.io/v1", "StorageClass"): decode_storage_class,
    ("storage.k8s.io/v1", "CSINode"): decode_attach_limits,
    ("storage.k8s.io/v1", "CSIDriver"): decode_tracks_capacity,
    ("storage.k8s.io/v1", "CSIStorageCapacity"): decode_storage_capacity,
}

READ: Final = (("v1", "Pod"), ("v1", "Namespace"), *_DECODERS)
"""Versions and kinds that are read here besides those of resource.k8s.io."""


class Reader:
    """Collects the objects of a cluster, in any order. Kinds that do not affect scheduling are ignored."""

    def __init__(self) -> None:
        self._pods = PodDecoder()
        self._by_kind: dict[str, list[Any]] = {kind: [] for _, kind in READ}
        self._devices: list[ResourceSlice | DeviceClass | ResourceClaim] = []
        self.templates: list[ResourceClaimTemplate] = []

    def add(self, value: Object) -> bool:
        """Reads one object (JSON). False when its kind does not matter. Raises DecodeError."""
        version, kind = value.get("apiVersion"), value.get("kind")
        if version not in BY_API_VERSION and (version, kind) not in READ:
            return False
        self.keep(str(kind), self.decode(value))
        return True

    def decode(self, value: Object) -> object:
        """What is kept of an object (JSON) of resource.k8s.io or of a kind among READ. Raises DecodeError."""
        version, kind = value["apiVersion"], value["kind"]
        if version in BY_API_VERSION:
            return decode(value, strict=False)
        if kind == "Pod":
            return self._pods.decode(value)
        if kind == "Namespace":
            meta = value.get("metadata") or {}
            return meta.get("name", ""), meta.get("labels") or {}
        return _DECODERS[version, kind](value)

    def keep(self, kind: str, decoded: object) -> None:
        """Takes what `decode` made of an object of this kind. Claims without a namespace are in `default`."""
        match decoded:
            case ResourceClaimTemplate():
                self.templates.append(_in_namespace(decoded))
            case ResourceClaim():
                self._devices.append(_in_namespace(decoded))
            case ResourceSlice() | DeviceClass():
                self._devices.append(decoded)
            case _:
                self._by_kind[kind].append(decoded)

    def snapshot(self) -> Snapshot:
        """The cluster that was read."""
        nodes: list[ClusterNode] = self._by_kind["Node"]
        cluster = Cluster.of((*self._devices, *(node.node for node in nodes)))
        budgets: Iterable[DisruptionBudget] = self._by_kind["PodDisruptionBudget"]
        storage = Storage(
            {volume.name: volume for volume in self._by_kind["PersistentVolume"]},
            {(claim.namespace, claim.name): claim for claim in self._by_kind["PersistentVolumeClaim"]},
            {storage_class.name: storage_class for storage_class in self._by_kind["StorageClass"]},
            dict(self._by_kind["CSINode"]),
            dict(self._by_kind["CSIDriver"]),
            tuple(self._by_kind["CSIStorageCapacity"]),
        )
        return Snapshot(
            cluster,
            tuple(nodes),
            tuple(self._by_kind["Pod"]),
            dict(self._by_kind["Namespace"]),
            storage,
            tuple(budgets),
        )

    def policies(self) -> Policies:
        """The classes, limits and quotas that admission applies to new objects."""
        return Policies(
            tuple(self._by_kind["PriorityClass"]),
            tuple(self._by_kind["RuntimeClass"]),
            tuple(self._by_kind["LimitRange"]),
            tuple(self._by_kind["ResourceQuota"]),
        )


def _in_namespace(claim: C) -> C:
    if claim.metadata.namespace:
        return claim
    return replace(claim, metadata=replace(claim.metadata, namespace="default"))
