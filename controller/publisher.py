# SPDX-License-Identifier: Apache-2.0
"""The loop that keeps a node's slices in the API server equal to what the node has."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver import DRIVER_NAME
from dra_driver.backoff import Backoff
from dra_driver.containment import Count
from dra_driver.gpu.devices import Description, GpuDevices, LeftOut
from dra_driver.gpu.health import keep_times
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import NvmlError
from dra_driver.kubeapi import NODES, ApiClient, ApiError, Kind, NotFoundError, Watcher, newest_dialect, slices_of
from dra_driver.kubeapi.client import JSON
from dra_driver.kubeapi.features import GATES, missing_gates, probe_features, without
from dra_driver.resource import ResourceSlice
from dra_driver.resource.codec import Dialect
from dra_driver.resource.device import SliceFeatures

from .reconcile import Writes, describe_difference, plan_writes
from .stored import StoredSlices
from .writer import Attempts, Problem, SliceWriter, Why, Written

log = logging.getLogger(__name__)


class NodeDevices(Protocol):
    """What the node has. Whoever changes it calls `Publisher.wake`."""

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Learn what an earlier process published. Called once, before `describe`."""

    def describe(self, features: SliceFeatures) -> Description:
        """What to publish on a server with these features. Raises NvmlError as long as nothing is known."""


@dataclass(frozen=True, slots=True)
class PublisherTiming:
    """How long the publisher waits, in seconds."""

    settle: float = 0.2  # after a change, for others that come with it
    resync: float = 60.0  # between comparisons that nobody asked for
    first_retry: float = 0.5
    longest_retry: float = 30.0  # when nothing could be read or written
    longest_slice_retry: float = 300.0  # of a slice that the API server does not store as it is sent


@dataclass(frozen=True, slots=True)
class Report:
    """How publishing went: what is published, or why nothing new is (`error`). `unpublished` says by object name which
    slices the API server does not hold as the node has them; of the `writes`, `failures` failed.
    """

    gpus: Sequence[GpuDevices] = ()
    left_out: Sequence[LeftOut] = ()
    missing_gates: Sequence[str] = ()
    writes: int = 0
    failures: int = 0
    unpublished: Mapping[str, Problem] = field(default_factory=dict)
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """Why what is published is not what the node has, in one line; None when it is."""
        if self.error is not None or not self.unpublished:
            return self.error
        name, problem = next(iter(self.unpublished.items()))
        more = f" (and {len(self.unpublished) - 1} more slices)" if len(self.unpublished) > 1 else ""
        return f"slice {name}: {problem.text}{more}"


@dataclass(slots=True)
class _Target:
    """Where the slices go: the API version, the node that owns them, and what the server keeps of them."""

    dialect: Dialect
    kind: Kind
    node_uid: str
    stored: StoredSlices
    writer: SliceWriter
    node_read_at: float = field(default_factory=time.monotonic)
    features: SliceFeatures | None = None  # None until asked
    wanted: frozenset[str] = frozenset()  # the optional ones among them that were wanted then


class Publisher:
    """Publishes one node's devices until stopped. `observe` is told of every attempt that changed something, and
    `unexpected` counts defects that cost one slice; `wanted` says which optional features (see
    dra_driver.kubeapi.features) are, at the moment.
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        devices: NodeDevices,
        timing: PublisherTiming | None = None,
        observe: Callable[[Report], None] = lambda _report: None,
        *,
        wanted: Callable[[], frozenset[str]] = frozenset,
        unexpected: Count = lambda _work: None,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._selector = f"spec.driver={DRIVER_NAME},spec.nodeName={node_name}"
        self._devices = devices
        self._timing = timing or PublisherTiming()
        self._observe = observe
        self._wanted = wanted
        self._unexpected = unexpected
        self._stopped = threading.Event()
        self._changed = threading.Event()
        self._attempts = Attempts(self._timing.first_retry, self._timing.longest_slice_retry)
        self._adopted = False
        self._target: _Target | None = None
        self._watcher: Watcher | None = None
        self._last: Report | None = None
        self._published = False
        self.comparisons = 0  # how often what is published was compared with what the node has

    def wake(self) -> None:
        """The node's devices have changed, or may have."""
        self._changed.set()

    def stop(self) -> None:
        """Let `run` return soon. The slices stay: pods keep running, and kubelet withdraws the slices of a
        driver that does not come back.
        """
        self._stopped.set()
        self._changed.set()

    @property
    def problem(self) -> str | None:
        """Why what is published may not be what the node has; None when it is."""
        return "nothing is published yet" if self._last is None else self._last.problem

    def run(self) -> None:
        """Publish, and go on publishing, until `stop`."""
        try:
            self._run()
        finally:
            if self._watcher is not None:
                self._watcher.stop()

    def _run(self) -> None:
        """Compare when something changed, and when a slice may be tried again. A change does not end the pause after a
        failure of the API server; it ends the one after a failure of the hardware, which it may be the end of.
        """
        backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        while not self._stopped.is_set():
            try:
                pause = self._publish(self._reach())
                backoff.reset()
            except NvmlError as error:
                pause = self._failed(error, backoff)
            except ApiError as error:
                self._stopped.wait(self._failed(error, backoff))
                if isinstance(error, NotFoundError):
                    self._leave()  # the API version is gone, or the node is
                continue
            if self._changed.wait(pause) and self._published:
                self._stopped.wait(self._timing.settle)

    def _failed(self, error: Exception, backoff: Backoff) -> float:
        pause = backoff.pause()
        self._tell(Report(error=str(error)))
        log.warning("not published yet: %s", error, extra={"retry_seconds": round(pause, 1)})
        return pause

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
            kind, stored = slices_of(dialect), StoredSlices(dialect, self._changed)
            writer = SliceWriter(self._client, (kind, dialect), stored, self._attempts, self._unexpected)
            self._target = _Target(dialect, kind, self._node_uid(), stored, writer)
            self._watch(self._target)
        return self._target

    def _leave(self) -> None:
        """Find everything out anew the next time."""
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = self._target = None

    def _node_uid(self) -> str:
        try:
            node = self._client.get(NODES, self._node_name)
        except NotFoundError:
            raise ApiError(f"there is no node {self._node_name!r}: --node-name must be a Node's name") from None
        return str(node["metadata"]["uid"])

    def _watch(self, target: _Target) -> None:
        """Keep the target's stored slices up to date from now on, and wait until they are for the first time."""

        def listed(values: Iterable[JSON]) -> None:
            target.stored.replace(values)
            # The watch had broken off: the server may be another one now, with other gates.
            if target.features is not None and missing_gates(target.features, target.wanted):
                target.features = None

        self._watcher = Watcher(
            self._client,
            target.kind,
            field_selector=self._selector,
            on_list=listed,
            on_event=target.stored.event,
        )
        self._watcher.start()
        while not target.stored.listed.wait(0.5) and not self._stopped.is_set():
            if self._watcher.missing.is_set():
                raise ApiError(f"the API server does not serve {target.kind.api_version} any more")

    # Publishing

    def _publish(self, target: _Target) -> float:
        """Write the difference between what the node has and what the API server holds, as far as it may be written
        now. Returns the seconds after which there is more to write, or to compare.
        """
        self._changed.clear()
        if self._stopped.is_set():
            return 0.0
        stored = target.stored.by_name()
        if not self._adopted:
            self._devices.adopt(stored.values())
            self._adopted = True
        features = self._features(target)
        description = self._devices.describe(features)
        writes = self._plan(target, description, features, stored)
        self.comparisons += 1
        if writes.creates and time.monotonic() - target.node_read_at > self._timing.settle:
            # Slices may be missing because their owner is: a Node that was deleted and created again has another UID.
            target.node_uid, target.node_read_at = self._node_uid(), time.monotonic()
            writes = self._plan(target, description, features, stored)
        written = Written()
        if writes and not self._stopped.is_set():
            written = self._write(writes, features, target)
        self._published = True
        unpublished = self._unpublished(writes, target)
        report = Report(
            description.gpus,
            description.left_out,
            missing_gates(target.features or features, target.wanted),
            writes=len(writes.deletes) + len(writes.updates) + len(writes.creates),
            failures=written.failures,
            unpublished=unpublished,
        )
        if writes or report != self._last:
            self._say_what_is_left_out(report)
            self._tell(report)
        due = self._attempts.seconds_until(unpublished)
        return self._timing.resync if due is None else min(due, self._timing.resync)

    def _features(self, target: _Target) -> SliceFeatures:
        """What the server keeps; asked again when other optional features are wanted than before."""
        wanted = self._wanted()
        if target.features is None or target.wanted != wanted:
            target.features = self._probe(target, wanted)
            target.wanted = wanted
            for gate in missing_gates(target.features, wanted):
                log.warning("the API server drops the fields of feature gate %s: it is disabled there", gate)
        return target.features

    def _probe(self, target: _Target, wanted: frozenset[str], suspected: frozenset[str] = frozenset()) -> SliceFeatures:
        lists = "list_attributes" in wanted
        return probe_features(
            self._client, target.dialect, DRIVER_NAME, self._node_name, lists=lists, suspected=suspected
        )

    def _plan(
        self, target: _Target, description: Description, features: SliceFeatures, stored: dict[str, ResourceSlice]
    ) -> Writes:
        desired = node_slices(self._node_name, target.node_uid, description.gpus, features)
        desired = keep_times(desired, stored.values())
        return plan_writes(desired, stored, self._attempts.in_vain(desired, stored))

    def _write(self, writes: Writes, features: SliceFeatures, target: _Target) -> Written:
        written = target.writer.write(writes, features)
        if written.conflict:
            # Look again rather than wait for the watch to tell.
            target.stored.replace(self._client.list(target.kind, field_selector=self._selector).items)
        if written.dropped:
            self._dropped(written.dropped, target)
        return written

    def _dropped(self, suspected: frozenset[str], target: _Target) -> None:
        """An answer lacked the fields of these features. Unless something else on the server took them out of that one
        slice, their gates are off: publish without them.
        """
        found = self._probe(target, target.wanted, suspected)
        gone = frozenset(flag for flag in suspected if not getattr(found, flag))
        for flag in sorted(gone):
            log.error("the API server drops the fields of feature gate %s: publishing without them", GATES[flag])
        if target.features is not None:  # else it is asked anyway
            target.features = without(target.features, gone)
        if gone:
            self._changed.set()

    def _unpublished(self, writes: Writes, target: _Target) -> dict[str, Problem]:
        """What is wrong with the slices that were written just now or have to wait."""
        found = {}
        for one in (*writes.deletes, *writes.updates, *writes.creates, *writes.waiting):
            if problem := self._attempts.problem(one.metadata.name):
                found[one.metadata.name] = problem
        stored = target.stored.by_name()
        for one in writes.waiting:
            name = one.metadata.name
            if name not in found:
                changed = describe_difference(one, stored[name], target.dialect) if name in stored else "all of it"
                found[name] = Problem(Why.CHANGED, f"somebody changed {changed} after it was written")
        return found

    def _say_what_is_left_out(self, report: Report) -> None:
        known = set(self._last.left_out) if self._last is not None else set()
        for one in report.left_out:
            if one not in known:
                log.warning("left out: %s: %s", one.subject, one.text)
