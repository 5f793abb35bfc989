# SPDX-License-Identifier: Apache-2.0
"""What the caretaker knows of nodes, slices and claims: as little of each object as its decisions need.

A large cluster has thousands of slices of tens of kilobytes each. Their metadata says enough: our slices are owned by
their Node, by name and UID. Only for one without such an owner has the slice itself to be read.
"""

from dataclasses import dataclass, field

from dra_driver import DRIVER_NAME
from dra_driver.cluster.client import JSON


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node that there is."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """A ResourceSlice of our driver. `node` and `owner_uid` are its owner's, None when no Node owns it.

    A change of the resource version alone is none that matters.
    """

    name: str
    uid: str
    node: str | None
    owner_uid: str | None = None
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A ResourceClaim with devices of our driver, as (pool, device), and the pods that it is reserved for."""

    namespace: str
    name: str
    uid: str
    api_version: str
    devices: tuple[tuple[str, str], ...]
    pods: tuple[str, ...] = ()


def node_facts(value: JSON) -> NodeFacts:
    """From a Node or its PartialObjectMetadata."""
    return NodeFacts(value["metadata"]["name"], value["metadata"]["uid"])


def slice_facts(value: JSON) -> SliceFacts:
    """From a slice or its PartialObjectMetadata."""
    meta = value["metadata"]
    owners = [one for one in meta.get("ownerReferences") or [] if (one["apiVersion"], one["kind"]) == ("v1", "Node")]
    node, owner_uid = (owners[0]["name"], owners[0]["uid"]) if owners else (None, None)
    return SliceFacts(meta["name"], meta["uid"], node, owner_uid, meta["resourceVersion"])


def claim_facts(value: JSON, api_version: str) -> ClaimFacts | None:
    """From a claim of any version of the API, since their statuses are alike; None without devices of ours."""
    meta, status = value["metadata"], value.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    devices = tuple((one["pool"], one["device"]) for one in results if one["driver"] == DRIVER_NAME)
    if not devices:
        return None
    pods = tuple(one["name"] for one in status.get("reservedFor") or [] if one.get("resource") == "pods")
    return ClaimFacts(meta["namespace"], meta["name"], meta["uid"], api_version, devices, pods)


def only_metadata(value: JSON) -> JSON:
    """What to keep of a node or a slice."""
    meta = value["metadata"]
    return {
        "metadata": {key: meta[key] for key in ("name", "uid", "resourceVersion", "ownerReferences") if key in meta}
    }


def only_allocation(value: JSON) -> JSON:
    """What to keep of a claim."""
    meta, status = value["metadata"], value.get("status") or {}
    return {
        "metadata": {key: meta[key] for key in ("namespace", "name", "uid")},
        "status": {key: status[key] for key in ("allocation", "reservedFor") if key in status},
    }
