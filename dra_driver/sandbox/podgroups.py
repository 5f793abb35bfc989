# SPDX-License-Identifier: Apache-2.0
"""PodGroups and the claims that their pods share (KEP 5729, Kubernetes 1.37 with the gate DRAWorkloadResourceClaims).

An entry of a pod's claims is one of its group if name, resourceClaimName and resourceClaimTemplateName are equal. The
claim is reserved for the group, and one claim is made for a template.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..kube.api import ApiClient, Kind, NotFoundError
from ..kube.kinds import POD_GROUPS

JSON = dict[str, Any]

_FIELDS: Final = ("name", "resourceClaimName", "resourceClaimTemplateName")


@dataclass(frozen=True, slots=True)
class PodGroups:
    """The PodGroups of a cluster, by namespace and name."""

    by_name: Mapping[tuple[str, str], JSON]

    @staticmethod
    def read(client: ApiClient) -> "PodGroups":
        """All PodGroups. There are none if the server does not have the kind. Raises ApiError."""
        try:
            groups: Sequence[JSON] = client.list(POD_GROUPS).items
        except NotFoundError:
            groups = ()
        return PodGroups({(group["metadata"]["namespace"], group["metadata"]["name"]): group for group in groups})

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs of the groups."""
        return frozenset(group["metadata"]["uid"] for group in self.by_name.values())

    def sharing(self, pod: JSON, entry: JSON) -> JSON | None:
        """The PodGroup whose claim an entry of the pod's claims is, None if the claim is the pod's own."""
        name = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
        group = self.by_name.get((pod["metadata"]["namespace"], name)) if name else None
        if group is None:
            return None
        shared = group["spec"].get("resourceClaims") or ()
        return group if any(all(other.get(key) == entry.get(key) for key in _FIELDS) for other in shared) else None


def served_groups(client: ApiClient) -> tuple[Kind, ...]:
    """Return the kind PodGroup if the server has it. Raises ApiError."""
    try:
        client.list(POD_GROUPS, keep=lambda _: {})
    except NotFoundError:
        return ()
    return (POD_GROUPS,)


def group_consumer(group: JSON) -> JSON:
    """The entry of `status.reservedFor` for a PodGroup."""
    meta = group["metadata"]
    return {"apiGroup": POD_GROUPS.group, "resource": POD_GROUPS.plural, "name": meta["name"], "uid": meta["uid"]}


def group_owner(group: JSON) -> JSON:
    """The owner reference of a claim that is made for a PodGroup."""
    meta = group["metadata"]
    return {"apiVersion": POD_GROUPS.api_version, "kind": "PodGroup", "name": meta["name"], "uid": meta["uid"]}
