# SPDX-License-Identifier: Apache-2.0
"""Volumes, their claims, and their limits: core/v1 and storage.k8s.io/v1."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...kube.resource import NodeSelector, Quantity
from ...kube.resource.codec import Fields
from ...kube.resource.codec.fields import node_selector, timestamp
from ...kube.resource.meta import empty
from .objects import LabelSelector, decode_label_selector
from .resources import resource_list, section, sections

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"

_BOUND: Final = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_CLASS: Final = "volume.beta.kubernetes.io/storage-class"


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """A PersistentVolume. `claimed_by` is namespace, name and UID (empty when any will do) of its claim."""

    name: str
    capacity: Quantity
    labels: Mapping[str, str] = field(default_factory=empty)
    access_modes: frozenset[str] = frozenset()
    storage_class: str = ""
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    phase: str = "Pending"
    deleted: bool = False
    node_affinity: NodeSelector | None = None
    csi: tuple[str, str] | None = None
    """Driver and volume handle."""
    claimed_by: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim. `bound` means that the binding is complete, not only that a volume is named."""

    namespace: str
    name: str
    uid: str
    volume: str = ""
    bound: bool = False
    storage_class: str = ""
    requested: Quantity | None = None
    access_modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    selector: LabelSelector | None = None
    phase: str = "Pending"
    deleted: bool = False
    selected_node: str = ""
    controller: str = ""
    """UID of the pod that it was made for."""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass. `topologies` are alternatives, each a map from node labels to the values that they may have."""

    name: str
    provisioner: str
    waits: bool
    """Whether volumes are bound only when a pod is scheduled (WaitForFirstConsumer)."""
    topologies: tuple[tuple[tuple[str, frozenset[str]], ...], ...] = ()

    def allows(self, labels: Mapping[str, str]) -> bool:
        """Whether volumes may be made for a node with these labels. A term without requirements allows nothing."""
        terms = self.topologies
        return not terms or any(term and all(labels.get(key) in values for key, values in term) for term in terms)


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A CSIStorageCapacity: how large a volume may become (`limit`; None means unknown) on some nodes."""

    storage_class: str
    topology: LabelSelector
    limit: Quantity | None


def decode_volume(value: Mapping[str, Any]) -> PersistentVolume:
    """A PersistentVolume. Raises DecodeError."""
    meta, spec, status = sections(value)
    claim, csi = spec.object("claimRef"), spec.object("csi")
    annotations = meta.text_map("annotations")
    return PersistentVolume(
        meta.required_text("name"),
        resource_list(spec, "capacity").get("storage", Quantity(0)),
        meta.text_map("labels"),
        frozenset(spec.texts("accessModes")),
        annotations.get(_CLASS, spec.text("storageClassName")),
        spec.text("volumeMode") or "Filesystem",
        spec.text("volumeAttributesClassName"),
        status.text("phase") or "Pending",
        bool(timestamp(meta, "deletionTimestamp")),
        node_selector(section(spec, "nodeAffinity").object("required")),
        (csi.text("driver"), csi.text("volumeHandle")) if csi is not None else None,
        (claim.text("namespace"), claim.text("name"), claim.text("uid")) if claim is not None else None,
    )


def decode_volume_claim(value: Mapping[str, Any]) -> VolumeClaim:
    """A PersistentVolumeClaim. Raises DecodeError."""
    meta, spec, status = sections(value)
    annotations = meta.text_map("annotations")
    namespace, name = meta.text("namespace") or "default", meta.required_text("name")
    owners = meta.objects("ownerReferences", lambda fields: (fields.flag("controller"), fields.text("uid")))
    selector = spec.object("selector")
    volume = spec.text("volumeName")
    return VolumeClaim(
        namespace,
        name,
        meta.text("uid") or f"persistentvolumeclaim-{namespace}-{name}",
        volume,
        bool(volume) and _BOUND in annotations,
        annotations.get(_CLASS, spec.text("storageClassName")),
        resource_list(section(spec, "resources"), "requests").get("storage"),
        frozenset(spec.texts("accessModes")),
        spec.text("volumeMode") or "Filesystem",
        spec.text("volumeAttributesClassName"),
        decode_label_selector(selector) if selector is not None else None,
        status.text("phase") or "Pending",
        bool(timestamp(meta, "deletionTimestamp")),
        annotations.get(_SELECTED_NODE, ""),
        next((uid for controls, uid in owners if controls), ""),
    )


def decode_storage_class(value: Mapping[str, Any]) -> StorageClass:
    """A StorageClass. Raises DecodeError."""
    top = Fields(value, strict=False)
    return StorageClass(
        top.required_object("metadata").required_text("name"),
        top.text("provisioner"),
        top.text("volumeBindingMode") == "WaitForFirstConsumer",
        top.objects(
            "allowedTopologies",
            lambda term: term.objects(
                "matchLabelExpressions", lambda fields: (fields.required_text("key"), frozenset(fields.texts("values")))
            ),
        ),
    )


def decode_attach_limits(value: Mapping[str, Any]) -> tuple[str, Mapping[str, int]]:
    """Of a CSINode: the node's name, and how many volumes it takes of each driver that sets a limit."""
    meta, spec, _ = sections(value)
    limits: dict[str, int] = {}
    for driver in spec.objects("drivers", lambda fields: fields):
        count = section(driver, "allocatable").integer("count")
        if count is not None:
            limits[driver.required_text("name")] = count
    return meta.required_text("name"), limits


def decode_tracks_capacity(value: Mapping[str, Any]) -> tuple[str, bool]:
    """Of a CSIDriver: its name, and whether it reports capacity (`spec.storageCapacity`)."""
    meta, spec, _ = sections(value)
    return meta.required_text("name"), spec.flag("storageCapacity")


def decode_storage_capacity(value: Mapping[str, Any]) -> StorageCapacity:
    """A CSIStorageCapacity. Raises DecodeError."""
    top = Fields(value, strict=False)
    largest, capacity = top.quantity("maximumVolumeSize"), top.quantity("capacity")
    return StorageCapacity(
        top.text("storageClassName"),
        decode_label_selector(top.object("nodeTopology")),
        capacity if largest is None else largest,
    )
