# SPDX-License-Identifier: Apache-2.0
"""The stream of a watch: one frame of JSON in each line.

The frame of an event is encoded once for all watchers with the same representation. Each wait ends at the timeout, at
the next bookmark, or with an event.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable
from typing import Final

from .. import field_errors as errors
from .. import status
from ..catalog import Cluster
from ..kinds import Served
from ..listing import INITIAL_EVENTS_END, Selection, Told, begin, drain, end
from ..objects import Object, encode
from ..store import Record
from ..verbs.request import Call, selectors
from . import rendering
from .rendering import Media

_SHORTEST: Final = 1800.0
"""The minimum seconds of a watch without a timeout. The maximum is twice as long."""


class Frames:
    """Encodes the frames of one watcher."""

    def __init__(self, cluster: Cluster, call: Call, media: Media) -> None:
        self._cluster = cluster
        self._served: Served = call.served
        self._media = media
        self._include = call.option("includeObject")
        self._headed = True

    def encode(self, told: Iterable[Told]) -> bytes:
        """Return the frames of some messages."""
        if not self._media.form:
            return b"".join(self._plain(item) for item in told)
        return b"".join(frame(item.type.value, self._formed(item.record.object)) for item in told)

    def _plain(self, told: Told) -> bytes:
        if told.event is None:
            return _plain_frame(told.type.value, told.record, self._served)
        key = (told.type.value, self._served.prefix)
        found = told.event.frames.get(key)
        if found is None:
            found = told.event.frames[key] = _plain_frame(told.type.value, told.record, self._served)
        return found

    def _formed(self, obj: Object) -> Object:
        if self._media.form != "Table":
            return rendering.partial(obj, self._media.version)
        meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        headed, self._headed = self._headed, False
        now = self._cluster.clock()
        return rendering.table(self._served, [obj], meta, self._media, now, self._include, headed=headed)

    def bookmark(self, revision: int, *, initial: bool = False) -> bytes:
        """Return a bookmark: a frame with the revision that the watcher has reached."""
        meta: Object = {"resourceVersion": str(revision)}
        if initial:
            meta["annotations"] = {INITIAL_EVENTS_END: "true"}
        obj: Object = {"metadata": meta}
        if self._media.form:
            return frame("BOOKMARK", self._formed({"spec": {}, **obj}))
        return frame("BOOKMARK", {"kind": self._served.kind.name, "apiVersion": self._served.api_version, **obj})


def _plain_frame(kind: str, record: Record, served: Served) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), record.encoded(served))


def frame(kind: str, obj: Object) -> bytes:
    """Return one line of a watch."""
    return encode({"type": kind, "object": obj}) + b"\n"


async def stream(cluster: Cluster, call: Call, media: Media) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a watch. Errors that are found only then are ERROR frames."""
    loop = asyncio.get_running_loop()
    seconds = call.number("timeoutSeconds") or random.uniform(_SHORTEST, 2 * _SHORTEST)  # noqa: S311
    deadline = loop.time() + seconds
    frames = Frames(cluster, call, media)
    bookmarks = call.flag("allowWatchBookmarks")
    initial = call.flag("sendInitialEvents")
    tests, _ = selectors(call)
    prefix = f"{call.namespace}/" if call.namespace else ""
    selection = Selection(prefix, tests)
    revision = _revision(call)
    try:
        watcher, first, known = begin(cluster.store, call.kind, selection, revision, initial=initial)
    except status.RequestError as error:
        yield frame("ERROR", error.status)
        return
    try:
        head = frames.encode(first)
        if bookmarks and (initial or not revision):
            head += frames.bookmark(known, initial=True)
        yield head
        while not watcher.cut_off:
            timeout = min(deadline - loop.time(), cluster.bookmark_interval)
            woken = await _woken(watcher.wake, timeout)
            watcher.wake.clear()
            body = frames.encode(drain(watcher, selection))
            over = loop.time() >= deadline
            if bookmarks and (over or not woken):
                body += frames.bookmark(cluster.store.revision)
            if body:
                yield body
            if over:
                return
    finally:
        end(cluster.store, call.kind, watcher)


async def _woken(wake: asyncio.Event, timeout: float) -> bool:
    try:
        async with asyncio.timeout(max(timeout, 0.0)):
            await wake.wait()
    except TimeoutError:
        return False
    return True


def _revision(call: Call) -> int | None:
    text = call.option("resourceVersion")
    if not text:
        return None
    if not text.isdecimal():
        problem = errors.invalid("resourceVersion", text, f'strconv.ParseUint: parsing "{text}": invalid syntax')
        raise status.internal(str(problem), plain=True)
    return int(text)
