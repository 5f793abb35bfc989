# SPDX-License-Identifier: Apache-2.0
"""The node's slices as the API server holds them, as far as is known here.

Told by a watch and by the answers to our own writes, whichever is newer: a watch lags behind what was just
written, and acting on its older picture would write everything twice.
"""

import threading
from collections.abc import Iterable

from dra_driver.resource import ResourceSlice


class StoredSlices:
    """Slices by object name. `changed` is set when somebody else changed something; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slices: dict[str, ResourceSlice] = {}
        self.changed = threading.Event()
        self.listed = threading.Event()

    def by_name(self) -> dict[str, ResourceSlice]:
        """A copy of what is known."""
        with self._lock:
            return dict(self._slices)

    def replace(self, slices: Iterable[ResourceSlice]) -> None:
        """The watch listed everything."""
        with self._lock:
            self._slices = {one.metadata.name: one for one in slices}
        self.listed.set()
        self.changed.set()

    def event(self, kind: str, seen: ResourceSlice) -> None:
        """The watch saw one slice ADDED, MODIFIED or DELETED."""
        name = seen.metadata.name
        with self._lock:
            known = self._slices.get(name)
            if known is not None and _version(known) >= _version(seen):
                return  # our own write, or one before it
            if kind == "DELETED":
                self._slices.pop(name, None)
            else:
                self._slices[name] = seen
        self.changed.set()

    def wrote(self, stored: ResourceSlice) -> None:
        """We created or updated a slice, and this is the server's answer."""
        with self._lock:
            self._slices[stored.metadata.name] = stored

    def deleted(self, name: str) -> None:
        """We deleted a slice."""
        with self._lock:
            self._slices.pop(name, None)


def _version(one: ResourceSlice) -> int:
    """Resource versions of one collection are ordered numbers (guaranteed since Kubernetes 1.35, true before)."""
    return int(one.metadata.resource_version or 0)
