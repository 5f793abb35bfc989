# SPDX-License-Identifier: Apache-2.0
"""The answer of the API server to pods and claims: defaults, limits, priorities, quotas and namespaces.

A pod that is in the cluster already, under the same name, is not counted twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ..kube.resource import ResourceClaim
from ..kube.resource.codec import DecodeError
from ..process.command import InputError
from ..scheduler.allocator import Cluster
from ..scheduler.pods import Admitted, Pod, PodDecoder, Policies, Quotas, Snapshot, admit_pod
from .workload import Demand
from .world import World

_ADMIN: Final = "resource.kubernetes.io/admin-access"
_UNKNOWN: Final = (
    ("PriorityClass", "priorityClassName", "its priority is taken to be 0: no PriorityClass is known"),
    ("RuntimeClass", "runtimeClassName", "its RuntimeClass is not considered: none is known"),
)
"""Kinds that give a field of a pod its meaning, and the note for a snapshot without them."""

_OF_CLASSES: Final = frozenset({"priority", "preemptionPolicy", "priorityClassName", "overhead"})
"""Fields of pods that follow from classes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A pod as the API server would store it, the reasons for a refusal, and notes about fields that are ignored."""

    pod: Pod
    rejects: tuple[str, ...]
    notes: tuple[str, ...]


class Admission:
    """Admits objects one after the other. Each admitted object counts for the quotas."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._policies = world.policies
        self._decoder = PodDecoder()
        self._pods = {(pod.namespace, pod.name): pod for pod in world.around.pods}

    def known(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name that the cluster has."""
        return self._pods.get((namespace, name))

    def forget(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name, which the cluster does not have any more."""
        gone = self.known(namespace, name)
        self._pods = {key: pod for key, pod in self._pods.items() if key != (namespace, name)}
        return gone

    def pod(self, demand: Demand, snapshot: Snapshot) -> Stored:
        """Admits the pod of a demand. Raises InputError."""
        assert demand.submitted is not None
        submitted, notes = _without_unknown(demand.submitted, self._world.unknown)
        pod, admitted = _admitted(demand, submitted, self._policies, self._decoder)
        if "PersistentVolumeClaim" in self._world.unknown and pod.volumes:
            pod = replace(pod, volumes=())
            notes.append("its volumes are not considered: no PersistentVolumeClaim is known")
        elif any(volume.ephemeral for volume in pod.volumes):
            pod = replace(pod, volumes=tuple(volume for volume in pod.volumes if not volume.ephemeral))
            notes.append("volumes that are made for it are not considered")
        rejects = [*self._missing_namespace(pod.namespace, snapshot)]
        rejects += [admitted.forbidden] if admitted.forbidden and not rejects else []
        rejects += _invalid(pod, admitted) if not rejects else ()
        if not rejects and not demand.replaces and self.known(pod.namespace, pod.name) is None:
            rejects += self.count(pod, snapshot)
        return Stored(pod, tuple(rejects), tuple(notes))

    def claims(self, claims: Sequence[ResourceClaim], snapshot: Snapshot) -> tuple[str, ...]:
        """Admits new claims. Returns the reasons for a refusal."""
        refused: list[str] = []
        for claim in claims:
            refused += (
                [*self._missing_namespace(claim.metadata.namespace or "default", snapshot)]
                or [*self._refuse_access(claim, snapshot)]
                or self.count(claim, snapshot)
            )
        return tuple(refused)

    def count(self, item: Pod | ResourceClaim, snapshot: Snapshot) -> list[str]:
        """Why a quota refuses a new object. An object that is not refused counts from now on."""
        if not self._policies.quotas:
            return []
        decision = Quotas(snapshot, self._world.templates).decide(item, self._policies.quotas)
        if decision.used_after is None:
            return list(decision.messages[:1])
        after = decision.used_after
        quotas = tuple(replace(quota, used=after.get(str(quota), quota.used)) for quota in self._policies.quotas)
        self._policies = replace(self._policies, quotas=quotas)
        return []

    def _missing_namespace(self, name: str, snapshot: Snapshot) -> Iterator[str]:
        if "Namespace" not in self._world.unknown and snapshot.namespaces and name not in snapshot.namespaces:
            yield f'namespaces "{name}" not found'

    def _refuse_access(self, claim: ResourceClaim, snapshot: Snapshot) -> Iterator[str]:
        """The refusal of admin access in a namespace without the label for it."""
        if "Namespace" in self._world.unknown:
            return
        labels = snapshot.labels_of(claim.metadata.namespace or "default")
        for index, request in enumerate(claim.spec.requests):
            if request.exactly is not None and request.exactly.admin_access and labels.get(_ADMIN) != "true":
                yield (
                    f'ResourceClaim.resource.k8s.io "{claim.metadata.name}" is invalid: spec.devices.requests[{index}]'
                    f".exactly.adminAccess: Forbidden: admin access to devices requires the `{_ADMIN}: true` label on"
                    " the containing namespace"
                )


def _named(pod: Mapping[str, Any]) -> Pod:
    """A pod that the API server refuses: whatever else it says cannot be relied on."""
    return Pod(pod["metadata"]["namespace"], pod["metadata"].get("name", ""), "")


def valid_pod(demand: Demand) -> tuple[Pod, tuple[str, ...]]:
    """The pod of a demand with the API server's defaults, and why its validation refuses the pod. Only the pod is
    looked at: no classes, limits or quotas. Raises InputError.
    """
    assert demand.submitted is not None
    submitted, _ = _without_unknown(demand.submitted, frozenset(kind for kind, _, _ in _UNKNOWN))
    spec = {name: value for name, value in submitted["spec"].items() if name not in _OF_CLASSES}
    pod, admitted = _admitted(demand, {**submitted, "spec": spec}, Policies(), PodDecoder())
    return pod, _invalid(pod, admitted)


def _admitted(
    demand: Demand, submitted: Mapping[str, Any], policies: Policies, decoder: PodDecoder
) -> tuple[Pod, Admitted]:
    try:
        admitted = admit_pod(submitted, policies)
        return _named(admitted.pod) if admitted.refusals else decoder.decode(admitted.pod), admitted
    except DecodeError as error:
        raise InputError(f"{demand.name}: {error}") from None


def _invalid(pod: Pod, admitted: Admitted) -> tuple[str, ...]:
    """The text with which the API server's validation refuses a pod. Empty if it does not."""
    if not admitted.errors:
        return ()
    errors = admitted.errors[0] if len(admitted.errors) == 1 else f"[{', '.join(admitted.errors)}]"
    return (f'Pod "{pod.name}" is invalid: {errors}',)


def _without_unknown(submitted: Mapping[str, Any], unknown: frozenset[str]) -> tuple[Mapping[str, Any], list[str]]:
    """The pod without its references to unknown kinds, and a note for each of them."""
    spec, notes = dict(submitted["spec"]), []
    for kind, field, said in _UNKNOWN:
        if kind in unknown and spec.get(field) and not str(spec[field]).startswith("system-"):
            del spec[field]
            notes.append(said)
    return {**submitted, "spec": spec}, notes


def held_claims(demand: Demand, cluster: Cluster) -> list[ResourceClaim]:
    """The claims of a demand. A claim that holds devices in the cluster is given without changes."""
    held = {key_of(claim): claim for claim in cluster.claims if claim.allocation is not None}
    return [held.get(key_of(claim), claim) for claim in demand.claims]


def key_of(claim: ResourceClaim) -> tuple[str, str]:
    """Namespace and name."""
    return claim.metadata.namespace or "default", claim.metadata.name
