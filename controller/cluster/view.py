# SPDX-License-Identifier: Apache-2.0
"""The nodes, slices and claims of the cluster as the caretaker knows them, with one watch for each kind and
driver.

The metadata of a slice is usually enough, because this driver's slices have their Node as owner, by name and UID.
Only a slice without such an owner has to be read as a whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from dra_driver.kube.api import ApiClient
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import NODES, claims_of, slices_of
from dra_driver.kube.resource.codec import Dialect

from .collection import Collection


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """An existing Node."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """A ResourceSlice of ours. `node` and `owner_uid` are those of the owner, or None if the owner is not a Node.

    A change of only the resource version does not matter.
    """

    name: str
    uid: str
    node: str | None
    owner_uid: str | None = None
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A ResourceClaim with devices of our drivers, as (pool, device), and the pods and PodGroups for which it is
    reserved.
    """

    namespace: str
    name: str
    uid: str
    api_version: str
    devices: tuple[tuple[str, str], ...]
    pods: tuple[str, ...] = ()
    pod_groups: tuple[str, ...] = ()


def node_facts(value: JSON) -> NodeFacts:
    """The facts of a Node or its PartialObjectMetadata."""
    return NodeFacts(value["metadata"]["name"], value["metadata"]["uid"])


def slice_facts(value: JSON) -> SliceFacts:
    """The facts of a slice or its PartialObjectMetadata."""
    meta = value["metadata"]
    owners = [one for one in meta.get("ownerReferences") or [] if (one["apiVersion"], one["kind"]) == ("v1", "Node")]
    node, owner_uid = (owners[0]["name"], owners[0]["uid"]) if owners else (None, None)
    return SliceFacts(meta["name"], meta["uid"], node, owner_uid, meta["resourceVersion"])


def claim_facts(value: JSON, api_version: str, drivers: Sequence[str]) -> ClaimFacts | None:
    """The facts of a claim in any version of the API, because their statuses are alike. None without devices
    of `drivers`.
    """
    meta, status = value["metadata"], value.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    devices = tuple((one["pool"], one["device"]) for one in results if one["driver"] in drivers)
    if not devices:
        return None
    users = [(one.get("resource"), one["name"]) for one in status.get("reservedFor") or []]
    pods, groups = (tuple(name for kind, name in users if kind == wanted) for wanted in ("pods", "podgroups"))
    return ClaimFacts(meta["namespace"], meta["name"], meta["uid"], api_version, devices, pods, groups)


def only_metadata(value: JSON) -> JSON:
    """The needed fields of a node or slice."""
    meta = value["metadata"]
    return {
        "metadata": {key: meta[key] for key in ("name", "uid", "resourceVersion", "ownerReferences") if key in meta}
    }


def only_allocation(value: JSON) -> JSON:
    """The needed fields of a claim."""
    meta, status = value["metadata"], value.get("status") or {}
    return {
        "metadata": {key: meta[key] for key in ("namespace", "name", "uid")},
        "status": {key: status[key] for key in ("allocation", "reservedFor") if key in status},
    }


class View:
    """What there is of `drivers`, watched from `start` to `stop`. Calls `changed` when there may be something to do."""

    def __init__(
        self, client: ApiClient, dialect: Dialect, drivers: Sequence[str], changed: Callable[[], None]
    ) -> None:
        claims, slices = claims_of(dialect), slices_of(dialect)

        def tell(_: object) -> None:
            changed()

        self.nodes = Collection(client, NODES, node_facts, tell, keep=only_metadata, metadata_only=True)
        self._slices = [
            Collection(
                client,
                slices,
                slice_facts,
                tell,
                keep=only_metadata,
                metadata_only=True,
                field_selector=f"spec.driver={driver}",
            )
            for driver in drivers
        ]
        ours = partial(claim_facts, api_version=claims.api_version, drivers=drivers)
        self.claims = Collection(client, claims, ours, tell, keep=only_allocation)
        self._watchers = [self.nodes.watcher, self.claims.watcher, *(one.watcher for one in self._slices)]

    @property
    def slices(self) -> list[SliceFacts]:
        """The slices of all drivers."""
        return [one for collection in self._slices for one in collection.all()]

    @property
    def complete(self) -> bool:
        """Whether each collection was listed. Before that, an unknown object may exist."""
        return self.nodes.listed and self.claims.listed and all(one.listed for one in self._slices)

    @property
    def problem(self) -> str | None:
        """Why a collection is unknown at the moment, or None."""
        return next((one.problem for one in self._watchers if one.problem), None)

    def start(self) -> None:
        """Start the watches."""
        for one in self._watchers:
            one.start()

    def stop(self) -> None:
        """Stop the watches."""
        for one in self._watchers:
            one.stop()
