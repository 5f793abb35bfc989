# SPDX-License-Identifier: Apache-2.0
"""Runs the controllers after each write, until none has anything left to do."""

import asyncio

from ..cluster import Cluster
from ..storage.store import Event
from .custom import CustomKinds
from .garbage import GarbageCollector
from .namespaces import NamespaceController


class Controllers:
    """All controllers of a server, fed with every event of its store."""

    def __init__(self, cluster: Cluster) -> None:
        self._custom = CustomKinds(cluster)
        self._garbage = GarbageCollector(cluster)
        self._namespaces = NamespaceController(cluster)
        cluster.store.listeners.append(self._observe)
        self._scheduled = False

    def _observe(self, collection: str, event: Event) -> None:
        self._custom.observe(collection, event)
        self._garbage.observe(collection, event)
        self._namespaces.observe(collection, event)

    def settle(self) -> None:
        """Lets the controllers work soon: after the answer to the current request has been made."""
        if not self._scheduled and not self._idle:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._work)

    @property
    def _idle(self) -> bool:
        return self._garbage.idle and self._namespaces.idle

    def _work(self) -> None:
        self._scheduled = False
        while not self._idle:
            self._garbage.collect()
            self._namespaces.work()
