# SPDX-License-Identifier: Apache-2.0
"""The nodes, slices and claims of the cluster, kept in sight by one watch each."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from dra_driver import DRIVER_NAME
from dra_driver.cluster import NODES, ApiClient, Kind, Watcher, claims_of, slices_of
from dra_driver.cluster.client import JSON
from dra_driver.resource.codec import Dialect

from .facts import claim_facts, node_facts, only_allocation, only_metadata, slice_facts


class Facts(Protocol):
    """What is known of one object, compared by value."""

    @property
    def uid(self) -> str: ...


T = TypeVar("T", bound=Facts)


class Collection(Generic[T]):
    """The facts of one kind's objects, None for objects that do not matter. Sets `changed` when they change."""

    def __init__(
        self,
        client: ApiClient,
        kind: Kind,
        facts: Callable[[JSON], T | None],
        changed: threading.Event,
        *,
        keep: Callable[[JSON], JSON],
        metadata_only: bool = False,
        field_selector: str = "",
    ) -> None:
        self._facts = facts
        self._changed = changed
        self._lock = threading.Lock()
        self._known: dict[str, T] = {}
        self.listed = False
        self.watcher = Watcher(
            client,
            kind,
            field_selector=field_selector,
            metadata_only=metadata_only,
            keep=keep,
            on_list=self._replace,
            on_event=self._event,
        )

    def all(self) -> list[T]:
        """What is known."""
        with self._lock:
            return list(self._known.values())

    def _replace(self, values: list[JSON]) -> None:
        found = [facts for value in values if (facts := self._facts(value)) is not None]
        with self._lock:
            self._known = {one.uid: one for one in found}
            self.listed = True
        self._changed.set()

    def _event(self, event: str, value: JSON) -> None:
        uid = value["metadata"]["uid"]
        facts = None if event == "DELETED" else self._facts(value)
        with self._lock:
            before = self._known.pop(uid, None)
            if facts is not None:
                self._known[uid] = facts
        if facts != before:  # most events are a node's heartbeats, or of claims that do not matter
            self._changed.set()


class View:
    """All three, from `start` to `stop`. `changed` is set whenever there may be something to do."""

    def __init__(self, client: ApiClient, dialect: Dialect, changed: threading.Event) -> None:
        claims, slices = claims_of(dialect), slices_of(dialect)
        self.nodes = Collection(client, NODES, node_facts, changed, keep=only_metadata, metadata_only=True)
        self.slices = Collection(
            client,
            slices,
            slice_facts,
            changed,
            keep=only_metadata,
            metadata_only=True,
            field_selector=f"spec.driver={DRIVER_NAME}",
        )
        ours = partial(claim_facts, api_version=claims.api_version)
        self.claims = Collection(client, claims, ours, changed, keep=only_allocation)
        self._watchers = [self.nodes.watcher, self.slices.watcher, self.claims.watcher]

    @property
    def complete(self) -> bool:
        """Whether each was listed once: before, what is missing may be there all the same."""
        return self.nodes.listed and self.slices.listed and self.claims.listed

    @property
    def problem(self) -> str | None:
        """Why one of them is out of sight at the moment."""
        return next((one.problem for one in self._watchers if one.problem), None)

    def start(self) -> None:
        """Begin to watch."""
        for one in self._watchers:
            one.start()

    def stop(self) -> None:
        """End."""
        for one in self._watchers:
            one.stop()
