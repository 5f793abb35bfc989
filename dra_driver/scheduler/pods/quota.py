# SPDX-License-Identifier: Apache-2.0
"""ResourceQuota: the usage of objects and quotas, and whether a new object is admitted.

Follows `pkg/quota/v1/evaluator/core` and the admission plugin ResourceQuota of Kubernetes 1.36, texts included. Pods,
ResourceClaims and ResourceClaimTemplates are counted.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...kube.resource import ALL, DeviceRequirements, Quantity, ResourceClaim, ResourceClaimTemplate
from ...kube.resource.claim import CLASS_RESOURCE_PREFIX, EXTENDED_CLAIM_ANNOTATION
from ...kube.resource.limits import RESULTS_PER_CLAIM
from .objects import Pod
from .policies import Quota, Scope
from .resources import Quantities, add, is_extended, is_native
from .snapshot import Snapshot

_ONE: Final = Quantity.of(1)
_ZERO: Final = Quantity(0)
_PODS: Final = "count/pods"
_CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
_TEMPLATES: Final = "count/resourceclaimtemplates.resource.k8s.io"
_PER_CLASS: Final = ".deviceclass.resource.k8s.io/devices"
_REQUESTS: Final = "requests."
_LIMITED: Final = ("cpu", "memory", "ephemeral-storage")
_OF_PODS: Final = frozenset(
    (_PODS, "pods", *_LIMITED, *(f"{kind}.{name}" for kind in ("requests", "limits") for name in _LIMITED))
)
_MUST_SPECIFY: Final = frozenset(
    f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory")
)

Countable = Pod | ResourceClaim | ResourceClaimTemplate


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a new object is admitted. `messages` has one refusal for each quota that refuses the object.

    The API server gives any of the refusals. Quotas that cannot decide, because a resource is not specified or not
    counted yet, refuse before other quotas.
    """

    usage: Quantities
    """The usage of the object."""
    messages: tuple[str, ...] = ()
    used_after: Mapping[str, Quantities] | None = None
    """The usage of each quota of the namespace after the object is added, or None if a quota refuses the object."""


class Quotas:
    """The usage of the quotas of a cluster."""

    def __init__(
        self,
        snapshot: Snapshot,
        templates: Sequence[ResourceClaimTemplate] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives the time in seconds since 1970. It decides which deleted pods should have ended."""
        self._snapshot = snapshot
        self._templates = templates
        self._clock = clock
        classes = snapshot.cluster.classes
        self._names = {class_.metadata.name: class_.extended_resource_name for class_ in classes}

    def usage(self, item: Countable) -> Quantities:
        """The resources that an object would be charged for, independent of the existing quotas."""
        if isinstance(item, Pod):
            return self._pod_usage(item)
        return self._claim_usage(item) if isinstance(item, ResourceClaim) else {_TEMPLATES: _ONE}

    def used(self, quota: Quota) -> Quantities:
        """The usage of a quota: the recorded one, or the sum over the existing objects if nothing is recorded."""
        if quota.used is not None:
            return quota.used
        total: dict[str, Quantity] = {}
        known = {name for name in quota.hard if any(counts(name) for counts in self._countable.values())}
        for kind, counts in self._countable.items():
            # an object that has one of the resources counts for all of them
            if not any(map(counts, quota.hard)):
                continue
            add(total, {name: _ZERO for name in quota.hard if counts(name)})
            for item in self._objects(kind):
                if _namespace(item) == quota.namespace and _in_scope(item, quota.scopes):
                    add(total, {name: amount for name, amount in self.usage(item).items() if name in known})
        return total

    def _objects(self, kind: type) -> Iterable[Countable]:
        if kind is Pod:
            return self._snapshot.pods
        return self._snapshot.cluster.claims if kind is ResourceClaim else self._templates

    @property
    def _countable(self) -> Mapping[type, Callable[[str], bool]]:
        """Which resources of a quota each kind of object counts for."""
        return {Pod: _is_of_pods, ResourceClaim: self._is_of_claims, ResourceClaimTemplate: _TEMPLATES.__eq__}

    def _is_of_claims(self, name: str) -> bool:
        if name == _CLAIMS or name.endswith(_PER_CLASS):
            return True
        return name.startswith(_REQUESTS) and name.removeprefix(_REQUESTS) in self._snapshot.served

    def decide(self, item: Countable, quotas: Iterable[Quota]) -> Decision:
        """Whether the object may be created."""
        usage = self.usage(item)
        mine = [quota for quota in quotas if quota.namespace == _namespace(item)]
        counts = self._countable[type(item)]
        after = {str(quota): self.used(quota) for quota in mine}
        concerned = [quota for quota in mine if any(map(counts, quota.hard)) and _in_scope(item, quota.scopes)]
        problems = [self._undecided(item, quota, after[str(quota)]) for quota in concerned]
        if not any(problems):
            problems = [_exceeded(quota, usage, after) for quota in concerned]
        messages = tuple(self._forbidden(item, problem) for problem in problems if problem)
        return Decision(usage, messages, None if messages else after)

    def _undecided(self, item: Countable, quota: Quota, used: Quantities) -> str:
        """Why a quota refuses an object without comparing amounts; empty if it compares."""
        names = sorted(filter(self._countable[type(item)], quota.hard))
        unspecified = _unspecified(item, names)
        if unspecified:
            return f"failed quota: {quota.name}: {unspecified}"
        if not used.keys() >= set(names):
            return f"status unknown for quota: {quota.name}, resources: {','.join(names)}"
        return ""

    def _forbidden(self, item: Countable, why: str) -> str:
        if isinstance(item, Pod):
            return f'pods "{item.name}" is forbidden: {why}'
        kind = "resourceclaims" if isinstance(item, ResourceClaim) else "resourceclaimtemplates"
        return f'{kind}.resource.k8s.io "{item.metadata.name}" is forbidden: {why}'

    def _pod_usage(self, pod: Pod) -> Quantities:
        ends = pod.quota.ends
        if not pod.quota.counts or (ends is not None and self._clock() > ends):
            return {_PODS: _ONE}
        usage = {_PODS: _ONE, "pods": _ONE}
        for name, quantity in pod.requests.items():
            if name in _LIMITED or name.startswith("hugepages-"):
                usage[name] = usage[f"{_REQUESTS}{name}"] = quantity
            elif is_extended(name):
                usage[f"{_REQUESTS}{name}"] = quantity
        usage.update((f"limits.{name}", quantity) for name, quantity in pod.limits.items() if name in _LIMITED)
        return usage

    def _claim_usage(self, claim: ResourceClaim) -> Quantities:
        by_class: dict[str, int] = {}
        for request in claim.spec.requests:
            most: dict[str, int] = {}
            for required in (*(alternative.requirements for alternative in request.first_available), request.exactly):
                if required is not None:
                    name = required.device_class_name
                    most[name] = max(most.get(name, 0), _devices(required))
            for name, count in most.items():
                by_class[name] = by_class.get(name, 0) + count
        usage = {_CLAIMS: _ONE, **{f"{name}{_PER_CLASS}": Quantity.of(count) for name, count in by_class.items()}}
        charged = self._charged_to_pod(claim)
        for name, count in by_class.items():
            own_name = self._names.get(name, "")
            for resource in (f"{CLASS_RESOURCE_PREFIX}{name}", *([own_name] if own_name else ())):
                left = Quantity.of(count) - charged.get(f"{_REQUESTS}{resource}", _ZERO)
                if left.nanos > 0:
                    usage[f"{_REQUESTS}{resource}"] = left
        return usage

    def _charged_to_pod(self, claim: ResourceClaim) -> Quantities:
        """What the claim's pod was already charged for, if the claim was made for the extended resources of the pod."""
        meta = claim.metadata
        if meta.annotations.get(EXTENDED_CLAIM_ANNOTATION) != "true":
            return {}
        owner = next((owner_reference for owner_reference in meta.owner_references if owner_reference.controller), None)
        if owner is None or (owner.kind, owner.api_version) != ("Pod", "v1"):
            return {}
        for pod in self._snapshot.pods:
            if (pod.namespace, pod.name, pod.uid) == (_namespace(claim), owner.name, owner.uid):
                own = pod.extended_claim or self._first_claim_of(pod, claim)
                return self._pod_usage(pod) if own == meta.name else {}
        return {}

    def _first_claim_of(self, pod: Pod, claim: ResourceClaim) -> str:
        """The name of the oldest claim for the extended resources of a pod. Equally old claims are ordered by name."""
        rivals = [
            other.metadata
            for other in (*self._snapshot.cluster.claims, claim)
            if other.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true"
            and _namespace(other) == pod.namespace
            and any(owner.controller and owner.uid == pod.uid for owner in other.metadata.owner_references)
        ]
        return min(rivals, key=lambda rival: (rival.creation_timestamp, rival.name)).name


def _devices(required: DeviceRequirements) -> int:
    return RESULTS_PER_CLAIM if required.allocation_mode == ALL else required.count


def _namespace(item: Countable) -> str:
    return item.namespace if isinstance(item, Pod) else item.metadata.namespace or "default"


def _exceeded(quota: Quota, usage: Quantities, after: dict[str, Quantities]) -> str:
    """Why a quota is too small for the usage of a new object; empty if it is not. Then `after` gets the new usage."""
    requested = {name: amount for name, amount in usage.items() if name in quota.hard and amount.nanos}
    used = after[str(quota)]
    new = dict(used)
    add(new, requested)
    exceeded = sorted(name for name in requested if new[name] > quota.hard[name])
    if not exceeded:
        after[str(quota)] = new
        return ""
    parts = (
        f"{word}: {','.join(f'{name}={amounts[name]}' for name in exceeded if name in amounts)}"
        for word, amounts in (("requested", requested), ("used", used), ("limited", quota.hard))
    )
    return f"exceeded quota: {quota.name}, {', '.join(parts)}"


def _is_of_pods(name: str) -> bool:
    if name in _OF_PODS or name.startswith(("hugepages-", f"{_REQUESTS}hugepages-")):
        return True
    of_class = name.startswith(f"{_REQUESTS}{CLASS_RESOURCE_PREFIX}")
    return of_class or (name.startswith(_REQUESTS) and not is_native(name))


def _unspecified(item: Countable, names: Iterable[str]) -> str:
    """The resources that a quota requires each container to specify, and which are missing.

    Empty if none is missing.
    """
    if not isinstance(item, Pod) or item.quota.has_own_resources:
        return ""
    problems = []
    for name in sorted(_MUST_SPECIFY.intersection(names)):
        kind, _, resource = name.rpartition(".")
        lacking = sorted(
            container
            for container, requests, limits in item.quota.containers
            if resource not in (limits if kind == "limits" else requests)
        )
        if lacking:
            problems.append(f"{name} for: {','.join(lacking)}")
    return f"must specify {'; '.join(problems)}" if problems else ""


def _in_scope(item: Countable, scopes: Iterable[Scope]) -> bool:
    return all(isinstance(item, Pod) and _matches(item, scope) for scope in scopes)


def _matches(pod: Pod, scope: Scope) -> bool:
    facts = pod.quota
    if scope.name == "PriorityClass":
        return _matches_class(facts.priority_class, scope)
    met = {
        "Terminating": facts.terminating,
        "NotTerminating": not facts.terminating,
        "BestEffort": facts.best_effort,
        "NotBestEffort": not facts.best_effort,
        "CrossNamespacePodAffinity": facts.crosses_namespaces,
    }
    return met.get(scope.name, False)


def _matches_class(name: str, scope: Scope) -> bool:
    match scope.operator:
        case "In":
            return bool(name) and name in scope.values
        case "NotIn":
            return name not in scope.values or not name
        case "Exists":
            return bool(name)
    return not name
