# SPDX-License-Identifier: Apache-2.0
"""VolumeBinding: bound volumes must be usable on the node, and unbound ones must be found or made for it.

Follows `pkg/scheduler/framework/plugins/volumebinding` and k8s.io/component-helpers/storage/volume of Kubernetes 1.36.
"""

from collections.abc import Iterable
from typing import Final

from ..allocation.nodes import NodeSelectorError, check_term, term_matches
from ..resource import Quantity
from .objects import ClusterNode, Pod
from .outcome import Refusal
from .snapshot import Site, Snapshot, Storage
from .storage import NO_PROVISIONER, PersistentVolume, StorageClass, VolumeClaim
from .volumes import claim_missing

_PLUGIN: Final = "VolumeBinding"
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
        return Refusal(_PLUGIN, reasons) if reasons else None

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
            return Refusal(_PLUGIN, (problem,))
        assert claim is not None
        storage_class = storage.classes.get(claim.storage_class)
        if claim.bound:
            bound.append(claim)
        elif storage_class is not None and storage_class.waits and not claim.volume:
            waiting.append(claim)
        else:
            immediate = True
    if immediate:
        return Refusal(_PLUGIN, ("pod has unbound immediate PersistentVolumeClaims",))
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
    """Whether the volume's node affinity matches the node. What cannot be evaluated does not."""
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
    """The volume to bind: the claim's own one, or else the smallest that has all it asks for on the node."""
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
