# SPDX-License-Identifier: Apache-2.0
"""The nodes, slices and claims of the cluster, with one watch for each kind, or for each driver's slices.

All parts of the process read the same view.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from dra_driver.domains import names as domain_names
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES, claims_of, slices_of
from dra_driver.kube.resource.codec import Dialect
from dra_driver.names import DRIVER_NAME

from .collection import Collection, Key
from .facts import (
    ClaimFacts,
    NodeFacts,
    SliceFacts,
    claim_facts,
    node_facts,
    only_allocation,
    only_node,
    only_slice,
    slice_facts,
)

Changed = Callable[[Sequence[object]], None]
"""Gets all facts that differ, before and after. Empty after a list in which nothing differs."""


def _node_keys(node: NodeFacts) -> Iterable[Key]:
    yield "name", node.name
    if node.label:
        yield "domain", node.label


def _claim_keys(claim: ClaimFacts) -> Iterable[Key]:
    for node, domain in claim.channels:
        yield from (("node", node), ("domain", domain))


def _channel_keys(found: SliceFacts) -> Iterable[Key]:
    if found.channel is not None:
        yield from (("node", found.channel.node), ("clique", found.channel.clique))


class ClusterView:
    """What the cluster has of the driver, watched from `start` to `stop`. With `domains`, also of ComputeDomains.

    `gpus` are slices of GPUs, and `channels` those of channels. Nodes are found by "name", and by "domain": the UID in
    their label. Claims are found by "node" and "domain" of their channels, and channels by "node" and "clique".
    """

    def __init__(self, client: ApiClient, dialect: Dialect, *, domains: bool) -> None:
        self.dialect = dialect
        self._listeners: list[Changed] = []
        drivers = (DRIVER_NAME, domain_names.DRIVER) if domains else (DRIVER_NAME,)
        slices = partial(Collection, client, slices_of(dialect), slice_facts, self._tell, keep=only_slice)
        self.nodes = Collection(
            client, NODES, node_facts, self._tell, keep=only_node, keys=_node_keys, metadata_only=True
        )
        self.claims = Collection(
            client,
            claims_of(dialect),
            partial(claim_facts, drivers=drivers),
            self._tell,
            keep=only_allocation,
            keys=_claim_keys,
        )
        self.gpus: Collection[SliceFacts] = slices(field_selector=f"spec.driver={DRIVER_NAME}", metadata_only=True)
        self.channels: Collection[SliceFacts] = slices(
            field_selector=f"spec.driver={domain_names.DRIVER}", keys=_channel_keys
        )
        self._watched: list[Collection[Any]] = [self.nodes, self.claims, self.gpus]
        self._watched += [self.channels] if domains else []

    def subscribe(self, changed: Changed) -> None:
        """Call `changed` after each list, and after each event that matters. To be called before `start`."""
        self._listeners.append(changed)

    def _tell(self, facts: Sequence[object]) -> None:
        for changed in self._listeners:
            changed(facts)

    @property
    def slices(self) -> list[SliceFacts]:
        """The slices of all drivers."""
        return [*self.gpus.all(), *self.channels.all()]

    @property
    def complete(self) -> bool:
        """Whether each collection was listed. Before that, an unknown object may exist."""
        return all(collection.listed for collection in self._watched)

    @property
    def problem(self) -> str | None:
        """Why a collection is unknown at the moment, or None."""
        return next((problem for collection in self._watched if (problem := collection.watcher.problem)), None)

    def start(self) -> None:
        """Start the watches."""
        for collection in self._watched:
            collection.watcher.start()

    def stop(self) -> None:
        """Stop the watches."""
        for collection in self._watched:
            collection.watcher.stop()
