# SPDX-License-Identifier: Apache-2.0
"""The loop that keeps a node's slices in the API server equal to what the node has."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver import DRIVER_NAME
from dra_driver.backoff import Backoff
from dra_driver.cluster import (
    NODES,
    ApiClient,
    ApiError,
    ConflictError,
    Kind,
    NotFoundError,
    Watcher,
    newest_dialect,
    slices_of,
)
from dra_driver.cluster.client import JSON
from dra_driver.cluster.features import GATES, dropped, missing_gates, probe_features, without
from dra_driver.gpu.devices import Description, GpuDevices, LeftOut
from dra_driver.gpu.health import keep_times
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import NvmlError
from dra_driver.resource import ResourceSlice
from dra_driver.resource.codec import Dialect, decode_slice, encode_slice
from dra_driver.resource.features import SliceFeatures
from dra_driver.resource.validation import slice_problems

from .reconcile import Writes, plan_writes, same_content
from .stored import StoredSlices

log = logging.getLogger(__name__)


class NodeDevices(Protocol):
    """What the node has. Whoever changes it calls `Publisher.wake`."""

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Learn what an earlier process published. Called once, before `describe`."""

    def describe(self, features: SliceFeatures) -> Description:
        """What to publish on a server with these features. Raises NvmlError as long as nothing is known."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the publisher waits, in seconds."""

    settle: float = 0.2  # after a change, for others that come with it
    resync: float = 60.0  # between comparisons that nobody asked for
    first_retry: float = 0.5
    longest_retry: float = 30.0


@dataclass(frozen=True, slots=True)
class Report:
    """How publishing went: what is published, or why nothing new is."""

    gpus: Sequence[GpuDevices] = ()
    left_out: Sequence[LeftOut] = ()
    missing_gates: Sequence[str] = ()
    writes: int = 0
    error: str | None = None


@dataclass(slots=True)
class _Target:
    """Where the slices go: the API version, the node that owns them, and what the server keeps of them."""

    dialect: Dialect
    kind: Kind
    node_uid: str
    node_read_at: float = field(default_factory=time.monotonic)
    features: SliceFeatures | None = None  # None until asked
    wanted: frozenset[str] = frozenset()  # the optional ones among them that were wanted then


class Publisher:
    """Publishes one node's devices until stopped. `observe` is told of every attempt that changed something; `wanted`
    says which optional features (see dra_driver.cluster.features) are, at the moment.
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        devices: NodeDevices,
        timing: Timing | None = None,
        observe: Callable[[Report], None] = lambda _report: None,
        *,
        wanted: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._devices = devices
        self._timing = timing or Timing()
        self._observe = observe
        self._wanted = wanted
        self._stopped = threading.Event()
        self._stored = StoredSlices()
        self._adopted = False
        self._target: _Target | None = None
        self._watcher: Watcher | None = None
        self._last: Report | None = None
        self._published = False
        self.comparisons = 0  # how often what is published was compared with what the node has

    def wake(self) -> None:
        """The node's devices have changed, or may have."""
        self._stored.changed.set()

    def stop(self) -> None:
        """Let `run` return soon. The slices stay: pods keep running, and kubelet withdraws the slices of a
        driver that does not come back.
        """
        self._stopped.set()
        self._stored.changed.set()

    @property
    def problem(self) -> str | None:
        """Why what is published may not be what the node has; None when it is."""
        return "nothing is published yet" if self._last is None else self._last.error

    def run(self) -> None:
        """Publish, and go on publishing, until `stop`."""
        try:
            self._run()
        finally:
            if self._watcher is not None:
                self._watcher.stop()

    def _run(self) -> None:
        backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        while not self._stopped.is_set():
            try:
                self._publish(self._reach())
                pause = self._timing.resync
                backoff.reset()
            except (ApiError, NvmlError) as error:
                pause = backoff.pause()
                self._tell(Report(error=str(error)))
                log.warning("not published yet: %s", error, extra={"retry_seconds": round(pause, 1)})
                if isinstance(error, NotFoundError):
                    self._leave()  # the API version is gone, or the node is
            if self._stored.changed.wait(pause) and self._published:
                self._stopped.wait(self._timing.settle)

    def _tell(self, report: Report) -> None:
        self._last = report
        self._observe(report)

    # The API server

    def _reach(self) -> _Target:
        """The target, with a watch on its slices; found anew when the server serves that version no more."""
        if self._watcher is not None and self._watcher.missing.is_set():
            self._leave()
        if self._target is None:
            dialect = newest_dialect(self._client)
            self._target = _Target(dialect, slices_of(dialect), self._node_uid())
            self._watch(self._target)
        return self._target

    def _leave(self) -> None:
        """Find everything out anew the next time."""
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = self._target = None
        self._stored = StoredSlices()

    def _node_uid(self) -> str:
        try:
            node = self._client.get(NODES, self._node_name)
        except NotFoundError:
            raise ApiError(f"there is no node {self._node_name!r}: --node-name must be a Node's name") from None
        return str(node["metadata"]["uid"])

    def _watch(self, target: _Target) -> None:
        """Keep `self._stored` up to date from now on, and wait until it is for the first time."""
        stored = self._stored

        def decode(value: JSON) -> ResourceSlice:
            return decode_slice(value, target.dialect, strict=False)

        def listed(values: Iterable[JSON]) -> None:
            stored.replace(map(decode, values))
            # The watch had broken off: the server may be another one now, with other gates.
            if target.features is not None and missing_gates(target.features, target.wanted):
                target.features = None

        self._watcher = Watcher(
            self._client,
            target.kind,
            field_selector=f"spec.driver={DRIVER_NAME},spec.nodeName={self._node_name}",
            on_list=listed,
            on_event=lambda event, value: stored.event(event, decode(value)),
        )
        self._watcher.start()
        while not stored.listed.wait(0.5) and not self._stopped.is_set():
            if self._watcher.missing.is_set():
                raise ApiError(f"the API server does not serve {target.kind.api_version} any more")

    # Publishing

    def _publish(self, target: _Target) -> None:
        """Write the difference between what the node has and what the API server holds, if there is any."""
        self._stored.changed.clear()
        if self._stopped.is_set():
            return
        stored = self._stored.by_name()
        if not self._adopted:
            self._devices.adopt(stored.values())
            self._adopted = True
        features = self._features(target)
        description = self._devices.describe(features)
        writes = self._plan(target, description, features, stored)
        self.comparisons += 1
        if writes.creates and time.monotonic() - target.node_read_at > self._timing.settle:
            # Slices may be missing because their owner is: a Node that was deleted and made anew has another UID.
            target.node_uid, target.node_read_at = self._node_uid(), time.monotonic()
            writes = self._plan(target, description, features, stored)
        if writes and not self._stopped.is_set():
            self._attempt(writes, target)
        self._published = True
        report = Report(
            description.gpus,
            description.left_out,
            missing_gates(target.features or features, target.wanted),
            writes=len(writes.deletes) + len(writes.updates) + len(writes.creates),
        )
        if writes or report != self._last:
            self._say_what_is_left_out(report)
            self._tell(report)

    def _features(self, target: _Target) -> SliceFeatures:
        """What the server keeps; asked again when other optional features are wanted than before."""
        wanted = self._wanted()
        if target.features is None or target.wanted != wanted:
            lists = "list_attributes" in wanted
            target.features = probe_features(self._client, target.dialect, DRIVER_NAME, self._node_name, lists=lists)
            target.wanted = wanted
            for gate in missing_gates(target.features, wanted):
                log.warning("the API server drops what feature gate %s is for: it is off there", gate)
        return target.features

    def _plan(
        self, target: _Target, description: Description, features: SliceFeatures, stored: dict[str, ResourceSlice]
    ) -> Writes:
        desired = node_slices(self._node_name, target.node_uid, description.gpus, features)
        return plan_writes(keep_times(desired, stored.values()), stored)

    def _attempt(self, writes: Writes, target: _Target) -> None:
        for one in writes.updates + writes.creates:
            for problem in slice_problems(one):
                log.error("slice %s breaks a rule of the API: %s", one.metadata.name, problem)
        try:
            self._write(writes, target)
        except ConflictError:
            # Somebody else wrote, and the watch has not told yet: look again rather than wait for it.
            page = self._client.list(target.kind, field_selector=f"spec.nodeName={self._node_name}")
            slices = (decode_slice(value, target.dialect, strict=False) for value in page.items)
            self._stored.replace(one for one in slices if one.driver == DRIVER_NAME)

    def _write(self, writes: Writes, target: _Target) -> None:
        began = time.monotonic()
        for one in writes.deletes:
            self._delete(one, target)
        for one in writes.updates:
            self._check(one, self._client.update(target.kind, encode_slice(one, target.dialect)), target)
        for one in writes.creates:
            self._check(one, self._client.create(target.kind, encode_slice(one, target.dialect)), target)
        log.info(
            "published slices",
            extra={
                "node": self._node_name,
                "slices_created": len(writes.creates),
                "slices_updated": len(writes.updates),
                "slices_deleted": len(writes.deletes),
                "devices": sum(len(one.devices) for one in writes.updates + writes.creates),
                "seconds": round(time.monotonic() - began, 3),
            },
        )

    def _delete(self, one: ResourceSlice, target: _Target) -> None:
        try:
            self._client.delete(target.kind, one.metadata.name, uid=one.metadata.uid)
        except NotFoundError:
            log.debug("slice %s was gone already", one.metadata.name)
        self._stored.deleted(one.metadata.name)

    def _check(self, sent: ResourceSlice, answer: JSON, target: _Target) -> None:
        """Note what the server made of a write: fields whose feature gate is off are dropped without an error."""
        stored = decode_slice(answer, target.dialect, strict=False)
        self._stored.wrote(stored)
        if same_content(sent, stored):
            return
        gone = dropped(sent, stored)
        if not gone:
            raise ApiError(f"the API server stored slice {sent.metadata.name} differently from what was sent")
        for flag in sorted(gone):
            log.error("the API server drops what feature gate %s is for: publishing without it", GATES[flag])
        if target.features is not None:  # else it is asked anyway
            target.features = without(target.features, gone)
        self._stored.changed.set()

    def _say_what_is_left_out(self, report: Report) -> None:
        known = set(self._last.left_out) if self._last is not None else set()
        for one in report.left_out:
            if one not in known:
                log.warning("left out: %s: %s", one.subject, one.text)
