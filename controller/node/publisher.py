# SPDX-License-Identifier: Apache-2.0
"""The loop that keeps the slices of a node and a driver in the API server equal to the devices of the node.

A process has one Publisher for each driver whose devices it publishes. They share only the client.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from dra_driver.errors import ImexFilesError
from dra_driver.gpu.devices import Description, GpuDevices, LeftOut
from dra_driver.gpu.health import keep_times
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import NvmlError
from dra_driver.gpu.view import UnreadError
from dra_driver.kube.api import ApiClient, ApiError, Kind, NotFoundError, Watcher, newest_dialect
from dra_driver.kube.api.client import JSON
from dra_driver.kube.api.features import GATES, missing_gates, probe_features, without
from dra_driver.kube.kinds import NODES, slices_of
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.codec import Dialect
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.names import DRIVER_NAME
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import Count, nobody
from dra_driver.process.worker import Worker

from .reconcile import Writes, describe_difference, plan_writes
from .rules import slices_within_rules
from .startup_taint import StartupTaint
from .writer import Attempts, SliceProblem, SliceWriter, StoredSlices, Why, Written

log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0  # longer than a request to an API server that answers


class NodeDevices(Protocol):
    """The devices of the node that one driver publishes. After a change, the caller must call `Publisher.wake`."""

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Take over what an earlier process published. Called once, before `describe`."""

    def describe(self, features: SliceFeatures) -> Description:
        """The devices to publish, with the features that a server stores. Raises NvmlError until the hardware
        was read, and ImexFilesError.
        """


@dataclass(frozen=True, slots=True)
class DriverOnNode:
    """The devices that a driver publishes on a node. `wanted` returns the optional features that are currently needed
    (see dra_driver.kube.api.features).
    """

    node_name: str
    devices: NodeDevices
    driver: str = DRIVER_NAME
    wanted: Callable[[], frozenset[str]] = frozenset

    @property
    def selector(self) -> str:
        """The field selector of the driver's slices on the node."""
        return f"spec.driver={self.driver},spec.nodeName={self.node_name}"


@dataclass(frozen=True, slots=True)
class PublisherTiming:
    """How long the publisher waits, in seconds."""

    settle: float = 0.2  # after a change, because more changes may follow
    resync: float = 60.0  # between comparisons without a change
    first_retry: float = 0.5
    longest_retry: float = 30.0  # if nothing could be read or written
    longest_slice_retry: float = 300.0  # for a slice that the API server does not store as it was sent


@dataclass(frozen=True, slots=True)
class PublishReport:
    """The result of an attempt to publish: what is published, or why it failed (`error`). `unpublished` has, by object
    name, the slices that the API server does not store as they should be. `failures` of the `writes` failed.
    """

    gpus: Sequence[GpuDevices] = ()
    left_out: Sequence[LeftOut] = ()
    missing_gates: Sequence[str] = ()
    writes: int = 0
    failures: int = 0
    unpublished: Mapping[str, SliceProblem] = field(default_factory=dict)
    error: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the published slices differ from the node's devices, in one line, or None."""
        if self.error is not None or not self.unpublished:
            return self.error
        name, problem = next(iter(self.unpublished.items()))
        more = f" (and {len(self.unpublished) - 1} more slices)" if len(self.unpublished) > 1 else ""
        return f"slice {name}: {problem.text}{more}"


@dataclass(slots=True)
class _Target:
    """The destination of the slices: the API version, the node that owns them, and which fields the server stores."""

    dialect: Dialect
    kind: Kind
    node_uid: str
    stored: StoredSlices
    writer: SliceWriter
    node_read_at: float = field(default_factory=time.monotonic)
    features: SliceFeatures | None = None  # None until probed
    wanted: frozenset[str] = frozenset()  # the optional features that the policy needed at that time


class Publisher:
    """Publishes the devices of `source` until it is stopped. `observe` is called after every attempt that changed
    something. `unexpected` counts unexpected errors with one slice. `taint` is told when all slices are published.
    """

    def __init__(
        self,
        client: ApiClient,
        source: DriverOnNode,
        timing: PublisherTiming | None = None,
        observe: Callable[[PublishReport], None] = lambda _report: None,
        unexpected: Count = nobody,
        taint: StartupTaint | None = None,
    ) -> None:
        self._client = client
        self._source = source
        self._timing = timing or PublisherTiming()
        self._observe = observe
        self._unexpected = unexpected
        self._taint = taint
        self._attempts = Attempts(self._timing.first_retry, self._timing.longest_slice_retry)
        self._adopted = False
        self._target: _Target | None = None
        self._watcher: Watcher | None = None
        self._last: PublishReport | None = None
        self._backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        self._worker = Worker("publish slices", self._round, at_end=self._leave)
        self._published = False
        self.comparisons = 0  # how often the stored slices were compared with the node's devices

    def wake(self) -> None:
        """Compare again, because the node's devices or the stored slices may have changed."""
        self._worker.wake(self._timing.settle if self._published else 0.0)

    def stop(self, wait: float = 0.0) -> None:
        """Let `run` return soon, or end the thread and wait so many seconds for it. The slices stay, because pods keep
        running. kubelet removes the slices of a driver that does not come back.
        """
        self._worker.stop(wait)

    @property
    def problem(self) -> str | None:
        """Why the published slices may differ from the node's devices, or None."""
        return "nothing was published yet" if self._last is None else self._last.problem

    def start(self) -> None:
        """Publish on a thread of its own until `stop` is called."""
        self._worker.start()

    def run(self) -> None:
        """Publish on this thread until `stop` is called."""
        self._worker.run()

    def _round(self) -> float:
        """Compare after each change, and when a slice may be written again. A change does not shorten the pause after a
        failure of the API server. It ends the pause after a failure of the hardware, because it may be the end of the
        failure.
        """
        try:
            if self._target is None or self._is_target_gone():
                self._reach()
                return 0.0  # the next round begins after the list, so it sees the listed slices
            pause = self._publish(self._target)
            self._backoff.reset()
            return pause
        except (NvmlError, ImexFilesError) as error:
            return self._failed(error)
        except ApiError as error:
            self._worker.pause(self._failed(error))
            if isinstance(error, NotFoundError):
                self._leave()  # the API version or the node no longer exists
            return 0.0

    def _failed(self, error: Exception) -> float:
        pause = self._backoff.pause()
        self._tell(PublishReport(error=str(error)))
        level = logging.INFO if isinstance(error, UnreadError) else logging.WARNING
        extra = {"driver": self._source.driver, "retry_seconds": round(pause, 1)}
        log.log(level, "not published yet: %s", error, extra=extra)
        return pause

    def _tell(self, report: PublishReport) -> None:
        self._last = report
        self._observe(report)

    # The API server

    def _is_target_gone(self) -> bool:
        """Whether the server no longer serves the target's API version."""
        return self._watcher is not None and self._watcher.missing.is_set()

    def _reach(self) -> None:
        """Make a new target, with a watch on its slices, and wait until they were listed."""
        self._leave()
        dialect = newest_dialect(self._client)
        kind, stored = slices_of(dialect), StoredSlices(dialect, self.wake)
        writer = SliceWriter(self._client, (kind, dialect), stored, self._attempts, self._unexpected)
        self._target = _Target(dialect, kind, self._node_uid(), stored, writer)
        self._watch(self._target)

    def _leave(self) -> None:
        """Forget the target, and end its watch."""
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = self._target = None

    def _node_uid(self) -> str:
        try:
            node = self._client.get(NODES, self._source.node_name)
        except NotFoundError:
            raise ApiError(
                f"there is no Node {self._source.node_name!r}: --node-name must be the name of a Node"
            ) from None
        return str(node["metadata"]["uid"])

    def _watch(self, target: _Target) -> None:
        """Watch the target's slices, and wait until they were listed."""

        def listed(values: Iterable[JSON]) -> None:
            target.stored.replace(values)
            # The watch was interrupted, so this may be another server, with other feature gates.
            if target.features is not None and missing_gates(target.features, target.wanted):
                target.features = None

        self._watcher = Watcher(
            self._client,
            target.kind,
            field_selector=self._source.selector,
            on_list=listed,
            on_event=target.stored.event,
        )
        self._watcher.start()
        while not target.stored.listed.wait(0.5) and not self._worker.is_stopped:
            if self._watcher.missing.is_set():
                raise ApiError(f"the API server no longer serves {target.kind.api_version}")

    # Publishing

    def _publish(self, target: _Target) -> float:
        """Write the differences between the node's devices and the stored slices, as far as they may be written now.
        Returns the seconds until the next write or comparison.
        """
        stored = target.stored.by_name()
        if not self._adopted:
            self._source.devices.adopt(stored.values())
            self._adopted = True
        features = self._features(target)
        description = self._source.devices.describe(features)
        lay_out = partial(self._lay_out, target=target, features=features)
        slices, description = slices_within_rules(description, lay_out, features)
        writes = self._plan(slices, stored)
        self.comparisons += 1
        if writes.creates and time.monotonic() - target.node_read_at > self._timing.settle:
            # Slices may be missing because the Node was deleted and created again. Then it has another UID.
            target.node_uid, target.node_read_at = self._node_uid(), time.monotonic()
            writes = self._plan(lay_out(description.gpus), stored)
        written = Written()
        if writes and not self._worker.is_stopped:
            written = self._write(writes, features, target)
        self._published = True
        unpublished = self._unpublished(writes, target)
        report = PublishReport(
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
        if self._taint is not None and report.problem is None:
            self._taint.published(target.node_uid)
        due = self._attempts.seconds_until(unpublished)
        return self._timing.resync if due is None else min(due, self._timing.resync)

    def _features(self, target: _Target) -> SliceFeatures:
        """The features that the server stores. Probed again if the policy needs other optional features than before."""
        wanted = self._source.wanted()
        if target.features is None or target.wanted != wanted:
            target.features = self._probe(target, wanted)
            target.wanted = wanted
            for gate in missing_gates(target.features, wanted):
                log.warning("the API server drops the fields of feature gate %s: it is disabled there", gate)
        return target.features

    def _probe(self, target: _Target, wanted: frozenset[str], suspected: frozenset[str] = frozenset()) -> SliceFeatures:
        lists = "list_attributes" in wanted
        return probe_features(
            self._client, target.dialect, self._source.driver, self._source.node_name, lists=lists, suspected=suspected
        )

    def _lay_out(
        self, gpus: Sequence[GpuDevices], target: _Target, features: SliceFeatures
    ) -> tuple[ResourceSlice, ...]:
        return node_slices(self._source.node_name, target.node_uid, gpus, features, driver=self._source.driver)

    def _plan(self, slices: Sequence[ResourceSlice], stored: dict[str, ResourceSlice]) -> Writes:
        desired = keep_times(slices, stored.values())
        return plan_writes(desired, stored, self._attempts.in_vain(desired, stored))

    def _write(self, writes: Writes, features: SliceFeatures, target: _Target) -> Written:
        written = target.writer.write(writes, features)
        if written.conflict:
            # List the slices now instead of waiting for the watch.
            target.stored.replace(self._client.list(target.kind, field_selector=self._source.selector).items)
        if written.dropped:
            self._dropped(written.dropped, target)
        return written

    def _dropped(self, suspected: frozenset[str], target: _Target) -> None:
        """Handle an answer without the fields of some features. Either the feature gates are disabled, and publishing
        continues without these features, or something else on the server removed the fields from this slice.
        """
        found = self._probe(target, target.wanted, suspected)
        gone = frozenset(flag for flag in suspected if not getattr(found, flag))
        for flag in sorted(gone):
            log.error("the API server drops the fields of feature gate %s: publishing without them", GATES[flag])
        if target.features is not None:  # else they will be probed anyway
            target.features = without(target.features, gone)
        if gone:
            self.wake()

    def _unpublished(self, writes: Writes, target: _Target) -> dict[str, SliceProblem]:
        """The problems of the slices that were written now or have to wait."""
        found = {}
        for slice_ in (*writes.deletes, *writes.updates, *writes.creates, *writes.waiting):
            if problem := self._attempts.problem(slice_.metadata.name):
                found[slice_.metadata.name] = problem
        stored = target.stored.by_name()
        for slice_ in writes.waiting:
            name = slice_.metadata.name
            if name not in found:
                changed = describe_difference(slice_, stored[name], target.dialect) if name in stored else "all of it"
                found[name] = SliceProblem(Why.CHANGED, f"somebody changed {changed} after it was written")
        return found

    def _say_what_is_left_out(self, report: PublishReport) -> None:
        known = set(self._last.left_out) if self._last is not None else set()
        for left_out in report.left_out:
            if left_out not in known:
                log.warning("left out: %s: %s", left_out.subject, left_out.text)


class Publishers:
    """The publishers of a process, which are woken and ended together. Others are added before `run`."""

    def __init__(self, first: Publisher) -> None:
        self.first = first
        self._others: list[Publisher] = []

    def add(self, other: Publisher) -> None:
        """Add a publisher."""
        self._others.append(other)

    @property
    def problem(self) -> str | None:
        """The first problem of a publisher, or None."""
        return next(
            (publisher.problem for publisher in (self.first, *self._others) if publisher.problem is not None), None
        )

    @property
    def are_others_ready(self) -> bool:
        """Whether all publishers but the first have published."""
        return all(publisher.problem is None for publisher in self._others)

    def wake(self) -> None:
        """Let all compare again."""
        for publisher in (self.first, *self._others):
            publisher.wake()

    def stop(self) -> None:
        """Let `run` return soon."""
        for publisher in (self.first, *self._others):
            publisher.stop()

    def run(self) -> None:
        """Publish until `stop` is called: the first on this thread, the others on threads of their own."""
        for other in self._others:
            other.start()
        try:
            self.first.run()
        finally:
            self.stop()
            for other in self._others:
                other.stop(_STOP_SECONDS)
