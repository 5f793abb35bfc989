# SPDX-License-Identifier: Apache-2.0
"""VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone of kube-scheduler 1.36.

Follows `pkg/scheduler/framework/plugins` and k8s.io/component-helpers/storage/volume. In-tree cloud volumes that
Kubernetes translates to CSI are not counted against attach limits.
"""

from collections.abc import Iterable
from typing import Final

from ..allocation.nodes import NodeSelectorError, check_term, term_matches
from ..resource import Quantity
from .objects import ClusterNode, Disk, Pod
from .outcome import Code, Refusal
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


def claim_missing(name: str) -> str:
    """What the scheduler says of a PersistentVolumeClaim that is not there."""
    return f'persistentvolumeclaim "{name}" not found'


class Restrictions:
    """Refuses nodes where another pod uses the same disk, and claims for one pod (ReadWriteOncePod) that are in use."""

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
    """The filter, a refusal of the pod, or None if its volumes have no restrictions."""
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
    """Refuses nodes to which more CSI volumes would be attached than the CSINode allows."""

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
    """Refuses nodes in another zone or region than a volume, by the labels of both."""

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


_BINDING: Final = "VolumeBinding"
_OTHER_NODE: Final = "node(s) didn't match PersistentVolume's node affinity"
_NONE_FOUND: Final = "node(s) didn't find available persistent volumes to bind"
_NO_SPACE: Final = "node(s) did not have enough free storage"
_NOTHING: Final = Quantity(0)
_GONE: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


class Binding:
    """The claims of a pod that are bound, and those that are to be bound when it is scheduled."""

    def __init__(self, bound: list[VolumeClaim], waiting: list[VolumeClaim], storage: Storage) -> None:
        self._bound = bound
        self._waiting = waiting
        self._storage = storage
        classes = {claim.storage_class for claim in waiting}
        self._candidates = {
            name: [volume for volume in storage.volumes.values() if volume.storage_class == name] for name in classes
        }

    def refuses(self, site: Site) -> Refusal | None:
        reasons = tuple(self._problems(site.node))
        return Refusal(_BINDING, reasons) if reasons else None

    def _problems(self, node: ClusterNode) -> Iterable[str]:
        volumes = [self._storage.volumes.get(claim.volume) for claim in self._bound]
        for volume in volumes:  # the first problem counts
            if volume is None or not _usable_on(volume, node):
                bound_problem = _GONE if volume is None else _OTHER_NODE
                break
        else:
            bound_problem = ""
        if bound_problem == _OTHER_NODE:
            yield bound_problem
        unbound_problem = self._unbound_problem(node)
        if unbound_problem:
            yield unbound_problem
        if bound_problem == _GONE:
            yield bound_problem

    def _unbound_problem(self, node: ClusterNode) -> str:
        to_find: list[VolumeClaim] = []
        to_make: list[VolumeClaim] = []
        for claim in self._waiting:
            if claim.selected_node and claim.selected_node != node.name:
                return _NONE_FOUND
            (to_make if claim.selected_node else to_find).append(claim)
        taken: set[str] = set()
        for claim in sorted(to_find, key=lambda one: one.requested or _NOTHING):
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


def prepare_binding(pod: Pod, snapshot: Snapshot) -> Binding | Refusal | None:
    """The filter, a refusal of the pod, or None when it uses no volume claims."""
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
    return Binding(bound, waiting, storage) if pod.volumes else None


def _problem(pod: Pod, name: str, claim: VolumeClaim | None, *, ephemeral: bool) -> str:
    if claim is None:
        if ephemeral:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        return claim_missing(name)
    if claim.phase == "Lost":
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume}"'
    if claim.deleted:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and claim.controller != pod.uid:
        return f"PVC {claim.namespace}/{name} was not created for pod {pod} (pod is not owner)"
    return ""


def _usable_on(volume: PersistentVolume, node: ClusterNode) -> bool:
    """Whether the volume's node affinity matches the node. A term that cannot be evaluated does not match."""
    if volume.node_affinity is None:
        return True
    for term in volume.node_affinity.terms:
        if term.match_expressions or term.match_fields:
            try:
                check_term(term)
            except NodeSelectorError:
                continue
            if term_matches(term, node.node):
                return True
    return False


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
