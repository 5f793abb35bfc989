# SPDX-License-Identifier: Apache-2.0
"""The node's slices in the API server, as far as this process knows them.

A watch and the answers to this process's own writes report them; the newer of the two counts. A watch lags behind
what was just written, so relying on the watch alone would write everything twice.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator

from dra_driver.kubeapi.client import JSON
from dra_driver.resource import ObjectMeta, ResourcePool, ResourceSlice
from dra_driver.resource.codec import Dialect, decode_slice

log = logging.getLogger(__name__)


class StoredSlices:
    """Slices by object name, from JSON of one version. Sets `changed` when somebody else changed something; safe
    between threads, of which one writes.
    """

    def __init__(self, dialect: Dialect, changed: threading.Event) -> None:
        self._dialect = dialect
        self._changed = changed
        self._lock = threading.Lock()
        self._slices: dict[str, ResourceSlice] = {}
        self._writing = ""
        self._seen_meanwhile = 0  # the version of the slice that is being written, as the watch saw it
        self.listed = threading.Event()

    def by_name(self) -> dict[str, ResourceSlice]:
        """A copy of what is known."""
        with self._lock:
            return dict(self._slices)

    def replace(self, values: Iterable[JSON]) -> None:
        """Everything was listed."""
        slices = [self._decode(value) for value in values]
        with self._lock:
            self._slices = {one.metadata.name: one for one in slices}
        self.listed.set()
        self._changed.set()

    def event(self, kind: str, value: JSON) -> None:
        """The watch saw one slice ADDED, MODIFIED or DELETED."""
        seen = self._decode(value)
        name = seen.metadata.name
        with self._lock:
            known = self._slices.get(name)
            if known is not None and _version(known) >= _version(seen):
                return  # our own write, or one before it
            if kind == "DELETED":
                self._slices.pop(name, None)
            else:
                self._slices[name] = seen
            if name == self._writing:
                self._seen_meanwhile = _version(seen)
                return  # maybe our own write: its answer will tell
        self._changed.set()

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """A slice is being written here. What the watch sees of it meanwhile is a change only if `wrote` is not called,
        or with an older version.
        """
        self._writing = name
        try:
            yield
        finally:
            with self._lock:
                overtaken, self._seen_meanwhile, self._writing = self._seen_meanwhile, 0, ""
            if overtaken:
                self._changed.set()

    def wrote(self, answer: JSON) -> ResourceSlice:
        """We created or updated the slice that is being written, and this is the server's answer."""
        stored = decode_slice(answer, self._dialect, strict=False)
        with self._lock:
            if self._seen_meanwhile <= _version(stored):
                self._slices[stored.metadata.name] = stored
                self._seen_meanwhile = 0
        return stored

    def deleted(self, name: str) -> None:
        """We deleted the slice that is being written."""
        with self._lock:
            self._slices.pop(name, None)
            self._seen_meanwhile = 0

    def _decode(self, value: JSON) -> ResourceSlice:
        """The slice; one without content, which differs from every other, when it cannot be read."""
        try:
            return decode_slice(value, self._dialect, strict=False)
        except Exception:  # one slice must not hide the others
            meta = value["metadata"]
            log.exception("slice %s cannot be read: it will be replaced", meta["name"])
            known = ObjectMeta(meta["name"], uid=meta["uid"], resource_version=meta["resourceVersion"])
            return ResourceSlice(known, "", ResourcePool("", 0, 0))


def _version(one: ResourceSlice) -> int:
    """Resource versions of one collection are ordered numbers (guaranteed since Kubernetes 1.35, true before)."""
    return int(one.metadata.resource_version or 0)
