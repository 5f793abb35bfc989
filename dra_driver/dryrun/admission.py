# SPDX-License-Identifier: Apache-2.0
"""Whether the API server would accept a pod and its claims: defaults, limits, priorities, quotas, namespaces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ..command import InputError
from ..resource import ResourceClaim
from ..resource.codec import DecodeError
from ..scheduling import Pod, PodDecoder, Quotas, Snapshot, admit_pod
from .workload import Demand
from .world import World

_ADMIN: Final = "resource.kubernetes.io/admin-access"
_UNKNOWN: Final = (
    ("PriorityClass", "priorityClassName", "its priority is taken to be 0: no PriorityClass is known"),
    ("RuntimeClass", "runtimeClassName", "its RuntimeClass is not considered: none is known"),
)
"""Kinds that give a field of a pod its meaning, and the note for a snapshot without them."""


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
        self._pods = {(one.namespace, one.name): one for one in world.around.pods}

    def known(self, namespace: str, name: str) -> Pod | None:
        """The pod of this name that the cluster has."""
        return self._pods.get((namespace, name))

    def pod(self, demand: Demand, snapshot: Snapshot) -> Stored:
        """Admits the pod of a demand. Raises InputError."""
        assert demand.submitted is not None
        submitted, notes = _without_unknown(demand.submitted, self._world.unknown)
        try:
            admitted = admit_pod(submitted, self._policies)
            pod = self._decoder.decode(admitted.pod)
        except DecodeError as error:
            raise InputError(f"{demand.name}: {error}") from None
        if "PersistentVolumeClaim" in self._world.unknown and pod.volumes:
            pod = replace(pod, volumes=())
            notes.append("its volumes are not considered: no PersistentVolumeClaim is known")
        elif any(one.ephemeral for one in pod.volumes):
            pod = replace(pod, volumes=tuple(one for one in pod.volumes if not one.ephemeral))
            notes.append("volumes that are made for it are not considered")
        rejects = [*self._missing_namespace(pod.namespace, snapshot)]
        rejects += [admitted.forbidden] if admitted.forbidden and not rejects else []
        if admitted.errors and not rejects:
            errors = admitted.errors[0] if len(admitted.errors) == 1 else f"[{', '.join(admitted.errors)}]"
            rejects.append(f'Pod "{pod.name}" is invalid: {errors}')
        if not rejects and self.known(pod.namespace, pod.name) is None:
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
        quotas = tuple(replace(one, used=after.get(str(one), one.used)) for one in self._policies.quotas)
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


def _without_unknown(submitted: Mapping[str, Any], unknown: frozenset[str]) -> tuple[Mapping[str, Any], list[str]]:
    """The pod without its references to unknown kinds, and a note for each of them."""
    spec, notes = dict(submitted["spec"]), []
    for kind, field, said in _UNKNOWN:
        if kind in unknown and spec.get(field) and not str(spec[field]).startswith("system-"):
            del spec[field]
            notes.append(said)
    return {**submitted, "spec": spec}, notes
