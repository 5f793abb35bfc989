# SPDX-License-Identifier: Apache-2.0
"""Workloads and PodGroups of `scheduling.k8s.io` (1.36: v1alpha2, 1.37: v1beta1), and the pods of a group.

Of both kinds, only the fields that decide scheduling are decoded. A pod belongs to the group that it names in
`spec.schedulingGroup.podGroupName`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...kube.resource import ResourceClaim
from ...kube.resource.codec import Fields
from ..pods import Pod
from ..pods.resources import section, sections

INITIALLY_SCHEDULED: Final = "PodGroupInitiallyScheduled"
"""The type of the condition that tells whether a group has been scheduled once."""


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """An entry of a group's `spec.resourceClaims`: the name of a claim or of a template."""

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the pods of a group are scheduled. `min_count` is None for the basic policy, which has no minimum.

    All pods must be on nodes with one value of the label `topology_key`; if it is empty, on any nodes.
    """

    min_count: int | None = None
    topology_key: str = ""
    claims: tuple[GroupClaim, ...] = ()

    @property
    def needed(self) -> int:
        """How many pods must be scheduled for the group to be scheduled. A basic group needs one pod."""
        return 1 if self.min_count is None else self.min_count


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup. `parent` is the name of its CompositePodGroup, which is an alpha feature of 1.37."""

    namespace: str
    name: str
    policy: Policy
    parent: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload: the policies of its `podGroupTemplates` by their names, and kind and name of its controller."""

    namespace: str
    name: str
    templates: Mapping[str, Policy]
    controller: tuple[str, str] = ("", "")


@dataclass(frozen=True, eq=False, slots=True)
class GangMember:
    """A pod of a group, and its claims in the order of the pod. Pods that share a claim have claims of one name."""

    pod: Pod
    claims: tuple[ResourceClaim, ...] = ()

    def __str__(self) -> str:
        return str(self.pod)


ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""


def claim_key(claim: ResourceClaim) -> ClaimKey:
    """Namespace and name of a claim."""
    return claim.metadata.namespace or "default", claim.metadata.name


def sharing(members: Sequence[GangMember]) -> dict[ClaimKey, list[int]]:
    """The claims without an allocation that several members use, with the indexes of these members."""
    users: dict[ClaimKey, list[int]] = {}
    for index, member in enumerate(members):
        for claim in member.claims:
            if claim.allocation is None:
                users.setdefault(claim_key(claim), []).append(index)
    return {key: indexes for key, indexes in users.items() if len(indexes) > 1}


def decode_pod_group(value: Mapping[str, Any]) -> PodGroup:
    """The PodGroup of a JSON object. Raises DecodeError."""
    meta, spec, _ = sections(value)
    parent = spec.text("parentCompositePodGroupName")
    return PodGroup(meta.text("namespace") or "default", meta.text("name"), decode_policy(spec), parent)


def decode_workload(value: Mapping[str, Any]) -> Workload:
    """The Workload of a JSON object. Raises DecodeError."""
    meta, spec, _ = sections(value)
    templates = spec.objects("podGroupTemplates", lambda fields: (fields.required_text("name"), decode_policy(fields)))
    reference = section(spec, "controllerRef")
    return Workload(
        meta.text("namespace") or "default",
        meta.text("name"),
        dict(templates),
        (reference.text("kind"), reference.text("name")),
    )


def decode_policy(fields: Fields) -> Policy:
    """The policy that the spec of a PodGroup, a template of a Workload, or `scheduling` of a Job declares.

    A gang without `minCount` (only Jobs allow that) has a minimum of 0, which the caller replaces. Raises DecodeError.
    """
    declared = section(fields, "schedulingPolicy")
    gang = declared.object("gang")
    least = None if gang is None else gang.integer("minCount") or 0
    if gang is not None and least is not None and least < 0:
        raise gang.error("minCount", f"must be at least 1, not {least}")
    keys = section(fields, "schedulingConstraints").objects("topology", lambda topology: topology.required_text("key"))
    return Policy(least, keys[0] if keys else "", tuple(_claims(fields)))


def _claims(fields: Fields) -> Iterable[GroupClaim]:
    return fields.objects(
        "resourceClaims",
        lambda entry: GroupClaim(
            entry.required_text("name"), entry.text("resourceClaimName"), entry.text("resourceClaimTemplateName")
        ),
    )
