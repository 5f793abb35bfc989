# SPDX-License-Identifier: Apache-2.0
"""The loop that keeps a node's slices in the API server equal to what the node has."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_driver import DRIVER_NAME
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
from dra_driver.gpu.devices import GpuDevices
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.nvml import NvmlError
from dra_driver.resource import ResourceSlice
from dra_driver.resource.codec import Dialect, decode_slice, encode_slice
from dra_driver.resource.validation import slice_problems

from .reconcile import Writes, plan_writes, same_content
from .stored import StoredSlices

log = logging.getLogger(__name__)

Discover = Callable[[], Sequence[GpuDevices]]
"""Reads the node's devices; may raise NvmlError."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the publisher waits, in seconds."""

    settle: float = 0.2  # after a foreign change, for others that come with it
    rediscover: float = 60.0  # between looks at the hardware
    first_retry: float = 0.5
    longest_retry: float = 30.0


class Publisher:
    """Publishes one node's devices until stopped."""

    def __init__(self, client: ApiClient, node_name: str, discover: Discover, timing: Timing | None = None) -> None:
        self._client = client
        self._node_name = node_name
        self._discover = discover
        self._timing = timing or Timing()
        self._stopped = threading.Event()
        self._stored = StoredSlices()
        self._gpus: Sequence[GpuDevices] = ()
        self._discovered_at: float | None = None
        self._partitionable = True
        self._watcher: Watcher | None = None

    def stop(self) -> None:
        """Let `run` return soon. The slices stay: pods keep running, and kubelet withdraws the slices of a
        driver that does not come back.
        """
        self._stopped.set()
        self._stored.changed.set()

    def run(self) -> None:
        """Publish, and go on publishing, until `stop`."""
        try:
            self._run()
        finally:
            if self._watcher is not None:
                self._watcher.stop()

    def _run(self) -> None:
        target: _Target | None = None
        retry = self._timing.first_retry
        while not self._stopped.is_set():
            try:
                self._look_at_hardware()
                if target is None:
                    target = self._find_target()
                    self._watch(target)
                self._publish(target)
                retry, pause = self._timing.first_retry, self._until_next_look()
            except (ApiError, NvmlError) as error:
                log.warning("not published yet: %s", error, extra={"retry_seconds": round(retry, 1)})
                pause, retry = retry * random.uniform(0.5, 1.0), min(retry * 2, self._timing.longest_retry)  # noqa: S311
            if self._stored.changed.wait(pause):
                self._stopped.wait(self._timing.settle)

    # The node

    def _look_at_hardware(self) -> None:
        """Read what the node has, if that was long ago. Only the first time has to succeed."""
        first = self._discovered_at is None
        if not first and self._until_next_look() > 0:
            return
        try:
            self._gpus = self._discover()
        except NvmlError as error:
            if first:
                raise
            log.warning("%s; what was published stays", error)
        self._discovered_at = time.monotonic()

    def _until_next_look(self) -> float:
        assert self._discovered_at is not None
        return max(self._discovered_at + self._timing.rediscover - time.monotonic(), 0.0)

    # The API server

    def _find_target(self) -> "_Target":
        dialect = newest_dialect(self._client)
        try:
            node = self._client.get(NODES, self._node_name)
        except NotFoundError:
            raise ApiError(f"there is no node {self._node_name!r}: --node-name must be a Node's name") from None
        return _Target(dialect, slices_of(dialect), node["metadata"]["uid"])

    def _watch(self, target: "_Target") -> None:
        """Keep `self._stored` up to date from now on, and wait until it is for the first time."""

        def decode(value: JSON) -> ResourceSlice:
            return decode_slice(value, target.dialect, strict=False)

        self._watcher = Watcher(
            self._client,
            target.kind,
            field_selector=f"spec.driver={DRIVER_NAME},spec.nodeName={self._node_name}",
            on_list=lambda values: self._stored.replace(map(decode, values)),
            on_event=lambda event, value: self._stored.event(event, decode(value)),
        )
        self._watcher.start()
        while not self._stored.listed.wait(0.5) and not self._stopped.is_set():
            pass

    def _publish(self, target: "_Target") -> None:
        """Write the difference between what the node has and what the API server holds, if there is any."""
        self._stored.changed.clear()
        gpus = [gpu for gpu in self._gpus if self._partitionable or gpu.counter_set is None]
        desired = node_slices(self._node_name, target.node_uid, gpus)
        writes = plan_writes(desired, self._stored.by_name())
        if not writes or self._stopped.is_set():
            return
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

    def _write(self, writes: Writes, target: "_Target") -> None:
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

    def _delete(self, one: ResourceSlice, target: "_Target") -> None:
        try:
            self._client.delete(target.kind, one.metadata.name, uid=one.metadata.uid)
        except NotFoundError:
            log.debug("slice %s was gone already", one.metadata.name)
        self._stored.deleted(one.metadata.name)

    def _check(self, sent: ResourceSlice, answer: JSON, target: "_Target") -> None:
        """Note what the server made of a write: fields whose feature gate is off are dropped without an error."""
        stored = decode_slice(answer, target.dialect, strict=False)
        self._stored.wrote(stored)
        if same_content(sent, stored):
            return
        if not _needs_counters(sent):
            raise ApiError(f"the API server stored slice {sent.metadata.name} differently from what was sent")
        log.error(
            "the API server drops shared counters (gate DRAPartitionableDevices is off): MIG devices are withdrawn"
        )
        self._partitionable = False
        self._stored.changed.set()


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the slices go: the API version, and the node that owns them."""

    dialect: Dialect
    kind: Kind
    node_uid: str


def _needs_counters(one: ResourceSlice) -> bool:
    return bool(one.shared_counters) or any(device.consumes_counters for device in one.devices)
