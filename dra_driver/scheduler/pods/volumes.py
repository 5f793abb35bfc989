# SPDX-License-Identifier: Apache-2.0
"""VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone of kube-scheduler 1.36.

Follows `pkg/scheduler/framework/plugins` and k8s.io/component-helpers/storage/volume. In-tree cloud volumes that
Kubernetes translates to CSI are not counted against attach limits.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ...kube.resource import Quantity
from ..allocator.nodes import term_matches
from .node_filters import usable_terms
from .objects import ClusterNode, Disk, Pod
from .outcome import Code, Filter, Prepared, Refusal
from .snapshot import Site, Snapshot, Storage
from .storage import NO_PROVISIONER, READ_WRITE_ONCE_POD, PersistentVolume, StorageClass, VolumeClaim

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

_BINDING: Final = "VolumeBinding"
_OTHER_NODE: Final = "node(s) didn't match PersistentVolume's node affinity"
_NONE_FOUND: Final = "node(s) didn't find available persistent volumes to bind"
_NO_SPACE: Final = "node(s) did not have enough free storage"
_NOTHING: Final = Quantity(0)
_GONE: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def restrictions(pod: Pod, snapshot: Snapshot) -> Prepared:
    """Refuses nodes where another pod uses the same disk, and claims for one pod (ReadWriteOncePod) that are in use."""
    exclusive = set()
    for volume in pod.volumes:
        if volume.ephemeral:
            continue
        claim = snapshot.storage.claims.get((pod.namespace, volume.claim))
        if claim is None:
            return Refusal(_RESTRICTIONS, (_claim_missing(volume.claim),))
        if READ_WRITE_ONCE_POD in claim.access_modes:
            exclusive.add(volume.claim)
    in_use_now = sum((pod.namespace, name) in snapshot.volumes_in_use for name in exclusive)
    if not pod.disks and not in_use_now:
        return None

    def refuses(site: Site) -> Refusal | None:
        if any(_conflict(disk, other) for there in site.pods for disk in pod.disks for other in there.disks):
            return _DISK_TAKEN
        in_use = in_use_now + sum(  # as in 1.36, the namespace of the removed or added pod does not matter
            times
            for changed, times in site.changes
            for volume in changed.volumes
            if not volume.ephemeral and volume.claim in exclusive
        )
        return _CLAIM_TAKEN if in_use > 0 else None

    return refuses


def _claim_missing(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def _conflict(one: Disk, other: Disk) -> bool:
    if one.kind != other.kind or one.identities.isdisjoint(other.identities):
        return False
    return not (one.read_only and other.read_only)


def attach_limits(pod: Pod, snapshot: Snapshot) -> Filter | None:
    """Refuses nodes to which more CSI volumes would be attached than the CSINode allows."""
    new = _attachable(pod, snapshot.storage)
    if not new:
        return None

    def refuses(site: Site) -> Refusal | None:
        limits = snapshot.storage.attach_limits.get(site.node.name)
        if not limits:
            return None
        attached = set().union(*(_attachable(pod, snapshot.storage) for pod in site.pods))
        after = Counter(driver for driver, _ in attached | new)
        exceeds = any(driver in limits and after[driver] > limits[driver] for driver, _ in new - attached)
        return _TOO_MANY if exceeds else None

    return refuses


def _attachable(pod: Pod, storage: Storage) -> set[tuple[str, str]]:
    """Driver and handle of the pod's CSI volumes. A volume that does not exist yet is identified by its claim."""
    found = set()
    for pod_volume in pod.volumes:
        claim = storage.claims.get((pod.namespace, pod_volume.claim))
        if claim is None:
            continue
        volume, storage_class = storage.volumes.get(claim.volume), storage.classes.get(claim.storage_class)
        if volume is not None and volume.csi is not None:
            found.add(volume.csi)
        elif volume is None and storage_class is not None:
            found.add((storage_class.provisioner, f"{claim.namespace}/{claim.name}"))
    return {source for source in found if all(source)}


def zones(pod: Pod, snapshot: Snapshot) -> Prepared:
    """Refuses nodes in another zone or region than a volume, by the labels of both."""
    storage = snapshot.storage
    places: list[tuple[str, frozenset[str]]] = []
    for volume in pod.volumes:
        if volume.ephemeral:
            continue
        claim = storage.claims.get((pod.namespace, volume.claim))
        if claim is None:
            return Refusal(_ZONE, (_claim_missing(volume.claim),))
        if not claim.volume:
            reason = _unbound(claim, storage)
            if reason:
                return Refusal(_ZONE, (reason,))
            continue
        there = storage.volumes.get(claim.volume)
        if there is None:
            return Refusal(_ZONE, (f'persistentvolume "{claim.volume}" not found',))
        places.extend(_zones_of(there))
    if not places:
        return None

    def refuses(site: Site) -> Refusal | None:
        labels = site.node.labels
        if not any(key in labels for key in _ZONES):
            return None
        other = any(labels.get(key, labels.get(_ZONES[key])) not in values for key, values in places)
        return _OTHER_ZONE if other else None

    return refuses


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


class Binding:
    """The bound claims of a pod, and the claims to bind when the pod is scheduled."""

    def __init__(self, bound: list[VolumeClaim], waiting: list[VolumeClaim], storage: Storage) -> None:
        self._bound = bound
        self._waiting = waiting
        self._storage = storage
        classes = {claim.storage_class for claim in waiting}
        self._candidates = {
            name: [volume for volume in storage.volumes.values() if volume.storage_class == name] for name in classes
        }

    def refuses(self, site: Site) -> Refusal | None:
        """A refusal if volumes of the pod cannot be used on the node."""
        volumes = [self._storage.volumes.get(claim.volume) for claim in self._bound]
        problems = (_GONE if volume is None else _OTHER_NODE for volume in volumes if not _usable_on(volume, site.node))
        bound = next(problems, "")  # the first problem counts
        unbound = self._unbound_problem(site.node)
        reasons = tuple(filter(None, (unbound, bound) if bound == _GONE else (bound, unbound)))
        return Refusal(_BINDING, reasons) if reasons else None

    def _unbound_problem(self, node: ClusterNode) -> str:
        to_find: list[VolumeClaim] = []
        to_make: list[VolumeClaim] = []
        for claim in self._waiting:
            if claim.selected_node and claim.selected_node != node.name:
                return _NONE_FOUND
            (to_make if claim.selected_node else to_find).append(claim)
        taken: set[str] = set()
        for claim in sorted(to_find, key=lambda claim: claim.requested or _NOTHING):
            volume = _smallest(claim, self._candidates[claim.storage_class], node, taken)
            if volume is None:
                to_make.append(claim)
            else:
                taken.add(volume.name)
        for claim in to_make:
            storage_class = self._storage.classes[claim.storage_class]
            if storage_class.provisioner in ("", NO_PROVISIONER) or not storage_class.allows(node.labels):
                return _NONE_FOUND
            if not self._has_space(claim, storage_class, node):
                return _NO_SPACE
        return ""

    def _has_space(self, claim: VolumeClaim, storage_class: StorageClass, node: ClusterNode) -> bool:
        if claim.requested is None or not self._storage.tracks_capacity.get(storage_class.provisioner):
            return True
        return any(
            capacity.storage_class == storage_class.name
            and capacity.limit is not None
            and capacity.limit.value >= claim.requested.value
            and capacity.topology.matches(node.labels)
            for capacity in self._storage.capacities
        )


def binding(pod: Pod, snapshot: Snapshot) -> Prepared:
    """Refuses nodes where volumes of the pod cannot be used, or be bound to its claims."""
    storage = snapshot.storage
    bound, waiting = [], []
    immediate = False
    for volume in pod.volumes:
        claim = storage.claims.get((pod.namespace, volume.claim))
        problem = _problem(pod, volume.claim, claim, ephemeral=volume.ephemeral)
        if problem:
            return Refusal(_BINDING, (problem,))
        assert claim is not None
        storage_class = storage.classes.get(claim.storage_class)
        if claim.bound:
            bound.append(claim)
        elif storage_class is not None and storage_class.waits and not claim.volume:
            waiting.append(claim)
        else:
            immediate = True
    if immediate:
        return Refusal(_BINDING, ("pod has unbound immediate PersistentVolumeClaims",))
    return Binding(bound, waiting, storage).refuses if pod.volumes else None


def _problem(pod: Pod, name: str, claim: VolumeClaim | None, *, ephemeral: bool) -> str:
    if claim is None:
        if ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return _claim_missing(name)
    if claim.phase == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume}"'
    if claim.deleted:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and claim.controller != pod.uid:
        return f"PVC {claim.namespace}/{name} was not created for pod {pod} (pod is not owner)"
    return ""


def _usable_on(volume: PersistentVolume | None, node: ClusterNode) -> bool:
    """Whether the volume exists, and its node affinity matches the node."""
    if volume is None or volume.node_affinity is None:
        return volume is not None
    return any(term_matches(term, node.node) for term in usable_terms(volume.node_affinity))


def _smallest(
    claim: VolumeClaim, volumes: Iterable[PersistentVolume], node: ClusterNode, taken: set[str]
) -> PersistentVolume | None:
    """The volume to bind: the volume reserved for the claim, else the smallest suitable one that the node can use."""
    wanted = claim.requested or _NOTHING
    best: PersistentVolume | None = None
    for volume in volumes:
        own = _is_for(volume, claim)
        if volume.name in taken or (volume.claimed_by is not None and not own) or volume.capacity < wanted:
            continue
        if volume.volume_mode != claim.volume_mode or volume.attributes_class != claim.attributes_class:
            continue
        if volume.deleted:
            continue
        usable = _usable_on(volume, node)
        if own:
            return volume if usable else None
        if volume.phase != "Available" or not usable or not claim.access_modes <= volume.access_modes:
            continue
        if claim.selector is not None and not claim.selector.matches(volume.labels):
            continue
        if best is None or volume.capacity < best.capacity:
            best = volume
    return best


def _is_for(volume: PersistentVolume, claim: VolumeClaim) -> bool:
    if volume.claimed_by is None:
        return False
    namespace, name, uid = volume.claimed_by
    return (namespace, name) == (claim.namespace, claim.name) and uid in ("", claim.uid)
