# SPDX-License-Identifier: Apache-2.0
"""Quotas for the resources of the device plugins: ResourceQuotas, and the ClusterQueues of Kueue.

A quota for an extended resource stays where DeviceClasses serve the resource: Kubernetes and Kueue count pods by its
name. Where pods get claims instead, Kubernetes counts the devices of a class, and Kueue needs a name for the class
(docs/how-to/quotas.md).
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...scheduler.allocator import Features
from ..documents import Document, each, within
from ..groups import key_of
from .configs import PREFIX
from .plan import MigrationPlan
from .workloads import CHANGE, UNCHANGED, WorkloadFinding, manifest

JSON = dict[str, Any]

_QUEUE: Final = ("kueue.x-k8s.io", "ClusterQueue")
_REQUESTS: Final = "requests."
_CLAIMS: Final = "claims."
"""The prefix of Kueue's name for claims of a class."""
_DURING: Final = "until the last node is changed, both ways of requests count on their own, and may exceed it together"


def quota_findings(documents: Sequence[Document], plan: MigrationPlan, features: Features) -> Iterator[WorkloadFinding]:
    """The quotas that name resources of NVIDIA's, with what becomes of them."""
    for document in documents:
        if document.kind == "ResourceQuota":
            yield from _quota(document, plan, features)
        elif key_of(document.value) == _QUEUE:
            yield from _queue(document, plan, features)


def _quota(document: Document, plan: MigrationPlan, features: Features) -> Iterator[WorkloadFinding]:
    hard = within(document.value, "spec", "hard")
    prefix = f"{_REQUESTS}{PREFIX}"
    names = [name.removeprefix(_REQUESTS) for name in hard if name.startswith(prefix)]
    if not names:
        return
    served, notes = [name for name in names if name in plan.classes], _missing(names, plan)
    if features.extended_resources or not served:
        kept = (f"it counts pods with {', '.join(served)} as before, and claims of their classes",) if served else ()
        yield WorkloadFinding(document, UNCHANGED, {}, (), (*kept, *notes))
        return
    changed = manifest(document.value)
    for name in served:
        devices = f"{plan.classes[name].metadata.name}.deviceclass.resource.k8s.io/devices"
        changed["spec"]["hard"].setdefault(devices, hard[f"{_REQUESTS}{name}"])
    reason = "its pods get claims, which count as devices of a class"
    yield WorkloadFinding(document, CHANGE, {}, (reason,), (_DURING, *notes), changed)


def _queue(document: Document, plan: MigrationPlan, features: Features) -> Iterator[WorkloadFinding]:
    groups = each(document.value, "spec", "resourceGroups")
    names = [name for group in groups for name in _covered(group) if name.startswith(PREFIX)]
    if not names:
        return
    served, notes = [name for name in names if name in plan.classes], _missing(names, plan)
    if features.extended_resources or not served:
        kept = (f"Kueue counts pods with {', '.join(served)} by this name as before",) if served else ()
        yield WorkloadFinding(document, UNCHANGED, {}, (), (*kept, *notes))
        return
    changed = manifest(document.value)
    for group in each(changed, "spec", "resourceGroups"):
        covered = [name for name in _covered(group) if name in served]
        group["coveredResources"] = [*_covered(group), *(_CLAIMS + name for name in covered)]
        for flavor in each(group, "flavors"):
            amounts = [amount for amount in each(flavor, "resources") if amount.get("name") in covered]
            more = [{**copy.deepcopy(amount), "name": _CLAIMS + str(amount["name"])} for amount in amounts]
            flavor["resources"] = [*each(flavor, "resources"), *more]
    mappings = ", ".join(
        f"{{name: {_CLAIMS}{name}, deviceClassNames: [{plan.classes[name].metadata.name}]}}" for name in served
    )
    reason = f"Kueue needs a name for claims: set resources.deviceClassMappings: [{mappings}] in its configuration"
    yield WorkloadFinding(document, CHANGE, {}, (reason,), (_DURING, *notes), changed)


def _covered(group: JSON) -> list[str]:
    """The resources of a group of a ClusterQueue."""
    found = group.get("coveredResources")
    return [str(name) for name in found] if isinstance(found, list) else []


def _missing(names: Sequence[str], plan: MigrationPlan) -> tuple[str, ...]:
    """Notes about resources that the quota names for nothing."""
    offered = ", ".join(plan.classes)
    return tuple(f"no node offers {name} (the nodes offer {offered})" for name in names if name not in plan.classes)
