# SPDX-License-Identifier: Apache-2.0
"""The stream of a watch: one frame of JSON in each line.

Only the bookmark that ends the initial objects is sent. A watch without a timeout ends when the client closes it.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from .. import status
from ..catalog import ServedCluster
from ..listing import INITIAL_EVENTS_END, WatchMessage, WatchSelection, begin, drain, end
from ..objects import Object, encode
from ..verbs.request import ApiCall, resource_version, selectors
from . import rendering


class Frames:
    """Encodes the frames of one watcher."""

    def __init__(self, call: ApiCall, form: str) -> None:
        self._served = call.served
        self._form = form
        self._whole = call.option("includeObject") == "Object"
        self._headed = True

    def encode(self, messages: Iterable[WatchMessage]) -> bytes:
        """Return the frames of some messages."""
        return b"".join(self._frame(item) for item in messages)

    def _frame(self, message: WatchMessage) -> bytes:
        kind, record = message.type.value, message.record
        if self._form:
            return frame(kind, self._formed(record.object))
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), record.encoded(self._served))

    def _formed(self, obj: Object) -> Object:
        if self._form != "Table":
            return rendering.partial(obj)
        meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        headed, self._headed = self._headed, False
        return rendering.table(self._served, [obj], meta, self._whole, headed=headed)

    def bookmark(self, revision: int) -> bytes:
        """Return the bookmark that ends the initial objects, with the revision that the watcher has reached."""
        meta = {"resourceVersion": str(revision), "annotations": {INITIAL_EVENTS_END: "true"}}
        if self._form:
            return frame("BOOKMARK", self._formed({"spec": {}, "metadata": meta}))
        kind = {"kind": self._served.kind.name, "apiVersion": self._served.api_version}
        return frame("BOOKMARK", {**kind, "metadata": meta})


def frame(kind: str, obj: Object) -> bytes:
    """Return one line of a watch."""
    return encode({"type": kind, "object": obj}) + b"\n"


async def stream(cluster: ServedCluster, call: ApiCall, form: str) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a watch. Errors that are found only then are ERROR frames."""
    frames = Frames(call, form)
    initial = call.flag("sendInitialEvents")
    selection = WatchSelection(f"{call.namespace}/" if call.namespace else "", selectors(call))
    revision = resource_version(call)
    seconds = call.number("timeoutSeconds")
    deadline = asyncio.get_running_loop().time() + seconds if seconds else None
    try:
        watcher, first, known = begin(cluster.store, call.kind, selection, revision, initial=initial)
    except status.RequestError as error:
        yield frame("ERROR", error.status)
        return
    try:
        head = frames.encode(first)
        if call.flag("allowWatchBookmarks") and (initial or not revision):
            head += frames.bookmark(known)
        yield head
        while await _woken(watcher.wake, deadline) and not watcher.cut_off:
            watcher.wake.clear()
            if body := frames.encode(drain(watcher, selection)):
                yield body
    finally:
        end(cluster.store, call.kind, watcher)


async def _woken(wake: asyncio.Event, deadline: float | None) -> bool:
    """Wait for an event. Return False at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await wake.wait()
    except TimeoutError:
        return False
    return True
