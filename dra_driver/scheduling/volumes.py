# SPDX-License-Identifier: Apache-2.0
"""VolumeRestrictions, NodeVolumeLimits and VolumeZone of kube-scheduler 1.36 (`pkg/scheduler/framework/plugins`).

In-tree cloud volumes that Kubernetes translates to CSI are not counted against attach limits.
"""

from typing import Final

from .objects import Disk, Pod
from .outcome import Code, Refusal
from .snapshot import Site, Snapshot, Storage
from .storage import READ_WRITE_ONCE_POD, PersistentVolume, VolumeClaim

_RESTRICTIONS: Final = "VolumeRestrictions"
_LIMITS: Final = "NodeVolumeLimits"
_ZONE: Final = "VolumeZone"
_DISK_TAKEN: Final = Refusal(_RESTRICTIONS, ("node(s) had no available disk",), Code.UNSCHEDULABLE)
_CLAIM_TAKEN: Final = Refusal(
    _RESTRICTIONS,
    (
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode"
        " already in-use by another pod",
    ),
    Code.UNSCHEDULABLE,
)
_TOO_MANY: Final = Refusal(_LIMITS, ("node(s) exceed max volume count",), Code.UNSCHEDULABLE)
_OTHER_ZONE: Final = Refusal(_ZONE, ("node(s) had no available volume zone",))

_ZONES: Final = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of zones and regions, and what replaced them."""


def claim_missing(name: str) -> str:
    """What the scheduler says of a PersistentVolumeClaim that is not there."""
    return f'persistentvolumeclaim "{name}" not found'


class Restrictions:
    """A disk cannot be mounted twice on the node, or only one pod may use a volume claim, and another one does."""

    def __init__(self, pod: Pod, exclusive: frozenset[str], in_use: int) -> None:
        """`exclusive` are the pod's claims with ReadWriteOncePod, `in_use` how many of them another pod uses."""
        self._disks = pod.disks
        self._exclusive = exclusive
        self._in_use = in_use

    def refuses(self, site: Site) -> Refusal | None:
        if any(_conflict(disk, other) for pod in site.pods if pod.disks for disk in self._disks for other in pod.disks):
            return _DISK_TAKEN
        in_use = self._in_use + sum(  # as in 1.36, whatever the namespace of what is removed or added
            times
            for pod, times in site.changes
            for volume in pod.volumes
            if not volume.ephemeral and volume.claim in self._exclusive
        )
        return _CLAIM_TAKEN if in_use > 0 else None


def _conflict(one: Disk, other: Disk) -> bool:
    if one.kind != other.kind or one.identities.isdisjoint(other.identities):
        return False
    return not (one.read_only and other.read_only)


def prepare_restrictions(pod: Pod, snapshot: Snapshot) -> Restrictions | Refusal | None:
    """The filter, a refusal of the pod, or None when its volumes know no restrictions."""
    exclusive = set()
    for volume in pod.volumes:
        if volume.ephemeral:
            continue
        claim = snapshot.storage.claims.get((pod.namespace, volume.claim))
        if claim is None:
            return Refusal(_RESTRICTIONS, (claim_missing(volume.claim),))
        if READ_WRITE_ONCE_POD in claim.access_modes:
            exclusive.add(volume.claim)
    in_use = sum((pod.namespace, name) in snapshot.volumes_in_use for name in exclusive)
    return Restrictions(pod, frozenset(exclusive), in_use) if pod.disks or in_use else None


class AttachLimits:
    """More CSI volumes would be attached to the node than its CSINode allows."""

    def __init__(self, pod: Pod, storage: Storage) -> None:
        self._pod = pod
        self._storage = storage
        self._new = dict(self._attachable(pod))

    def refuses(self, site: Site) -> Refusal | None:
        limits = self._storage.attach_limits.get(site.node.name)
        if not self._new or not limits:
            return None
        attached = {volume: driver for pod in site.pods for volume, driver in self._attachable(pod)}
        for driver in set(self._new.values()) & limits.keys():
            new = sum(one == driver and volume not in attached for volume, one in self._new.items())
            if new and new + sum(one == driver for one in attached.values()) > limits[driver]:
                return _TOO_MANY
        return None

    def _attachable(self, pod: Pod) -> list[tuple[tuple[str, str], str]]:
        """Driver and handle of the pod's CSI volumes, each with its driver."""
        found = []
        for volume in pod.volumes:
            claim = self._storage.claims.get((pod.namespace, volume.claim))
            if claim is not None:
                source = self._source(claim)
                if source is not None and all(source):
                    found.append((source, source[0]))
        return found

    def _source(self, claim: VolumeClaim) -> tuple[str, str] | None:
        volume = self._storage.volumes.get(claim.volume)
        if volume is not None:
            return volume.csi
        storage_class = self._storage.classes.get(claim.storage_class)
        # a volume that does not exist yet is known by its claim
        return None if storage_class is None else (storage_class.provisioner, f"{claim.namespace}/{claim.name}")


def prepare_limits(pod: Pod, snapshot: Snapshot) -> AttachLimits | None:
    """The filter, or None when the pod has no volumes that are attached."""
    return AttachLimits(pod, snapshot.storage) if pod.volumes else None


class Zones:
    """A volume is in another zone or region than the node, going by the labels of both."""

    def __init__(self, places: list[tuple[str, frozenset[str]]]) -> None:
        """`places` are label keys with the values that a node may have."""
        self._places = places

    def refuses(self, site: Site) -> Refusal | None:
        labels = site.node.labels
        if not any(key in labels for key in _ZONES):
            return None
        for key, values in self._places:
            if labels.get(key, labels.get(_ZONES[key])) not in values:
                return _OTHER_ZONE
        return None


def prepare_zones(pod: Pod, snapshot: Snapshot) -> Zones | Refusal | None:
    """The filter, a refusal of the pod, or None when none of its volumes is in a zone."""
    storage = snapshot.storage
    places = []
    for volume in pod.volumes:
        if volume.ephemeral:
            continue
        claim = storage.claims.get((pod.namespace, volume.claim))
        if claim is None:
            return Refusal(_ZONE, (claim_missing(volume.claim),))
        if not claim.volume:
            reason = _unbound(claim, storage)
            if reason:
                return Refusal(_ZONE, (reason,))
            continue
        there = storage.volumes.get(claim.volume)
        if there is None:
            return Refusal(_ZONE, (f'persistentvolume "{claim.volume}" not found',))
        places.extend(_zones_of(there))
    return Zones(places) if places else None


def _unbound(claim: VolumeClaim, storage: Storage) -> str:
    """Why a claim without a volume cannot be placed; empty when its class waits for a pod."""
    if not claim.storage_class:
        return "PersistentVolumeClaim had no pv name and storageClass name"
    storage_class = storage.classes.get(claim.storage_class)
    if storage_class is None:
        return f'storageclass.storage.k8s.io "{claim.storage_class}" not found'
    return "" if storage_class.waits else "PersistentVolume had no name"


def _zones_of(volume: PersistentVolume) -> list[tuple[str, frozenset[str]]]:
    found = []
    for key in _ZONES:
        values = [value.strip() for value in volume.labels[key].split("__")] if key in volume.labels else []
        if values and all(values):
            found.append((key, frozenset(values)))
    return found
