# SPDX-License-Identifier: Apache-2.0
"""Watching a cluster, and a new answer after each change that matters."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from ..kube.api import ApiClient, Kind, Watcher
from ..kube.resource import Node, ObjectMeta
from ..kube.resource.codec import Decoded, DecodeError
from ..process.command import InputError
from ..scheduler.pods import Reader
from .answer import Answer
from .inventory import found_without, kinds, may_lack, stored
from .report import print_picture_report
from .sources import Place, Source, completed
from .whatif import WhatIf, new_nodes
from .world import DEVICES_ONLY, KINDS, Found, UnreadableObjects, may_list, named_error, with_known_world

_QUIET_SECONDS: Final = 0.3
"""After a pause of this length between changes, the answer is computed."""
_LONGEST_SECONDS: Final = 3.0
"""After this time, the answer is computed even if changes do not pause."""

_LOOK_SECONDS: Final = 1.0
"""The interval at which the watches are checked for missing rights."""

_KEPT: Final = "kept"

JSON = Mapping[str, Any]

_Collection = tuple[bool, str]
"""Whether its objects are only of the world around devices, and the name of the kind. Nodes are of both."""


class LiveCluster:
    """The slices, classes, claims and nodes of a cluster now, and unless `devices_only` the world around them."""

    def __init__(self, client: ApiClient, where: str, *, devices_only: bool) -> None:
        """Begins to watch. Raises ApiError if the cluster does not answer or refuses a list or a watch."""
        self._where = where
        allowed = {} if devices_only else {name: may_list(client, kind) for name, kind in KINDS.items()}
        self._forbidden = [name for name, may in allowed.items() if may is False]
        self._lock = threading.Lock()
        self._values: dict[_Collection, dict[str, JSON]] = {}
        self._changed = threading.Event()
        known = kinds(client)
        self._lacking = [
            name for name in may_lack(devices_only=devices_only) if name in known and not may_list(client, known[name])
        ]
        watched: dict[_Collection, Kind] = {
            (False, name): kind for name, kind in known.items() if name not in self._lacking
        }
        watched |= {(True, name): KINDS[name] for name, may in allowed.items() if may}
        for kind in watched.values():
            # A watcher asks for ever what this says at once: that it is not allowed.
            client.watch(kind, client.list(kind, keep=lambda _: {}).resource_version).end()
        self._watchers = {collection: self._watch(client, collection, kind) for collection, kind in watched.items()}
        for watcher in self._watchers.values():
            watcher.start()

    def stop(self) -> None:
        """End the watches."""
        for watcher in self._watchers.values():
            watcher.stop()

    def states(self, seconds: float | None = None) -> Iterator[Found]:
        """The state now, and the state after each change that matters. Ends after `seconds`, None: never; the state now
        is given in any case.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        seen: object = None
        while seen is None or time.monotonic() < end:
            self._settle(math.inf if seen is None else end)
            kept = self._kept()
            if kept is not None and kept != seen:
                seen = kept
                yield self._found(kept)

    def _settle(self, end: float) -> None:
        """Wait for a change, and then until changes pause, or until the time `end`. Raises StatusError if the right to
        watch is lost.
        """
        while not self._changed.wait(min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                return
            for watcher in self._watchers.values():
                if watcher.forbidden is not None:
                    raise watcher.forbidden
        deadline = time.monotonic() + _LONGEST_SECONDS
        while self._changed.is_set() and time.monotonic() < deadline:
            self._changed.clear()
            self._changed.wait(_QUIET_SECONDS)
        self._changed.clear()

    def _kept(self) -> list[tuple[_Collection, Any]] | None:
        """The kept fields of every object, in the order in which a cluster lists them. None until all objects were
        listed.
        """
        with self._lock:
            if len(self._values) < len(self._watchers):
                return None
            every = [(watcher, sorted(self._values[watcher].items())) for watcher in self._watchers]
        return [(collection, value[_KEPT]) for collection, items in every for _, value in items]

    def _found(self, kept: Iterable[tuple[_Collection, Any]]) -> Found:
        objects: list[Decoded] = []
        reader = Reader()
        left_out = UnreadableObjects()
        for (around, name), object_ in kept:
            if isinstance(object_, DecodeError):
                left_out.add(object_)
            elif around:
                reader.keep(name, object_)
            else:
                objects.append(object_)
        found = found_without(self._lacking, objects)
        found = replace(found, unknown=(*found.unknown, *left_out.notes))
        if not any(around for around, _ in self._watchers):
            return replace(found, notes=(f"{DEVICES_ONLY}, as asked",))
        return with_known_world(found, reader, self._forbidden, self._where)

    def _watch(self, client: ApiClient, collection: _Collection, kind: Kind) -> Watcher:
        around, name = collection
        decode_one = Reader().decode if around else _decoded

        def keep(value: JSON) -> dict[str, Any]:
            kept: object
            try:
                kept = decode_one({"apiVersion": kind.api_version, "kind": name, **value})
            except DecodeError as error:
                kept = named_error(error, name, value)
            return {"metadata": value["metadata"], _KEPT: kept}

        def on_list(items: Iterable[JSON]) -> None:
            with self._lock:
                self._values[collection] = {_key(item): item for item in items}
            self._changed.set()

        def on_event(event: str, value: JSON) -> None:
            with self._lock:
                if event == "DELETED":
                    self._values[collection].pop(_key(value), None)
                else:
                    self._values[collection][_key(value)] = value
            self._changed.set()

        return Watcher(client, kind, keep=keep, on_list=on_list, on_event=on_event)


def _key(value: JSON) -> str:
    return f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"


def _decoded(value: JSON) -> Decoded:
    """The object without the fields that change and decide nothing, such as the resourceVersion."""
    object_ = stored(value)
    if isinstance(object_, Node):
        return replace(object_, metadata=ObjectMeta(name=object_.name, labels=object_.metadata.labels))
    return replace(object_, metadata=replace(object_.metadata, resource_version="", annotations={}))


@dataclass(frozen=True, slots=True)
class Watching:
    """How a cluster is watched: without end, or `until_fits` and then for at most `seconds` (None: without a limit)."""

    until_fits: bool = False
    seconds: float | None = None
    devices_only: bool = False


def ask_again(
    place: Place,
    what_if: WhatIf,
    given: Sequence[Decoded],
    answer: Callable[[Source], Answer],
    watching: Watching,
    output: str,
) -> int:
    """Print the answer now, and each answer that differs from the last. Returns the exit status once all fits, or that
    of the last answer after the time limit.

    Raises InputError if the cluster cannot be watched.
    """
    connection = place.connection
    if connection is None:
        flag = "--until-fits" if watching.until_fits else "--watch"
        raise InputError(f"{flag} needs a cluster to watch, and the devices are from {place.where}")
    added = new_nodes(what_if)
    live = LiveCluster(ApiClient(connection), place.where, devices_only=watching.devices_only)
    try:
        last: Answer | None = None
        for state in live.states(watching.seconds):
            found = answer(completed(place.source_of(state), what_if, place.features, added, given))
            if last is None or not found.says_the_same_as(last):
                _print(found, output, first=last is None)
            last = found
            if watching.until_fits and found.fits:
                return found.status
    finally:
        live.stop()
    assert last is not None
    click.echo(f"timed out: not everything fits after {watching.seconds:g} s (--timeout)", err=True)
    return last.status


def _print(answer: Answer, output: str, *, first: bool) -> None:
    """Print an answer, for people with the time. Programs get one document after the other."""
    if output in ("table", "wide"):
        click.echo(("" if first else "\n") + time.strftime("%Y-%m-%d %H:%M:%S"))
    print_picture_report(answer, output)
    sys.stdout.flush()
