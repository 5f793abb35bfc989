# SPDX-License-Identifier: Apache-2.0
"""The health of devices, as plugins report it.

Kubelet has one stream for each driver, to the instance that registered last, if that instance has a health service. A
report is valid until its timeout. After that, and when the stream ends, the health is unknown.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc

from dra_driver.process.containment import nobody
from dra_driver.process.worker import Worker

from .journal import Journal
from .options import Periods
from .plugin import HealthReport, Plugin
from .state import rpc_text
from .wire import DeviceHealth


class PluginHealth:
    """The latest reports of all drivers, and the streams that bring them."""

    def __init__(
        self,
        periods: Periods,
        journal: Journal,
        changed: Callable[[str, frozenset[tuple[str, str]]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed(driver, devices)` is called on a stream's thread after each change of devices (pool, name)."""
        self._periods = periods
        self._journal = journal
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._devices: dict[str, dict[tuple[str, str], tuple[DeviceHealth, float]]] = {}
        self._watched: dict[str, _Watch] = {}

    def get(self, driver: str, pool: str, device: str) -> DeviceHealth:
        """Return the health of a device. It is unknown if there is no valid report."""
        with self._lock:
            health, until = self._devices.get(driver, {}).get((pool, device), (DeviceHealth(), 0.0))
        return health if self._clock() <= until else DeviceHealth()

    def update(self, driver: str, report: HealthReport) -> frozenset[tuple[str, str]]:
        """Store a report, and return the devices whose health has changed."""
        now, changed = self._clock(), set()
        with self._lock:
            devices = self._devices.setdefault(driver, {})
            for key, health in report.items():
                if key not in devices or devices[key][0] != health:
                    changed.add(key)
                # the report has the plugin's time; kubelet counts from the time when it gets the report
                timeout = health.timeout if health.timeout > 0 else self._periods.health_timeout
                devices[key] = health, now + timeout
        return frozenset(changed)

    def follow(self, driver: str, plugin: Plugin | None) -> None:
        """Watch only this instance of the driver. None: watch no instance."""
        with self._lock:
            current = self._watched.pop(driver, None)
            if current is not None and current.plugin is plugin:
                self._watched[driver] = current
                return
            if plugin is not None and plugin.registration.health_service is not None:
                self._watched[driver] = _Watch(plugin, partial(self._round, driver))
        if current is not None:
            current.cancel()

    def _round(self, driver: str, watch: "_Watch") -> float | None:
        """Read reports until the stream ends. Returns the seconds until the stream is opened again."""
        stream = watch.open()
        if stream is None:
            return None
        try:
            for report in stream:
                changed = self.update(driver, report)
                text = f"{len(report)} devices, {len(changed)} changed"
                self._journal.record("HealthReported", driver, text, logging.INFO if changed else logging.DEBUG)
                if changed:
                    self._changed(driver, changed)
            end = "stream ended"
        except grpc.RpcError as error:
            end = rpc_text(error)
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                watch.cancel()
        with self._lock:
            if self._watched.get(driver) in (None, watch):  # the reports of a newer stream stay
                self._devices.pop(driver, None)
        self._journal.record("HealthStreamEnded", driver, end)
        return self._periods.health_retry


class _Watch:
    """The stream of one plugin. It is reopened until it is cancelled."""

    def __init__(self, plugin: Plugin, work: Callable[["_Watch"], float | None]) -> None:
        """`work` reads a stream on the watch's thread, and returns the seconds until it is called again."""
        self.plugin = plugin
        self._lock = threading.Lock()
        self._stream: grpc.CallIterator[HealthReport] | None = None
        self._worker = Worker("watch device health", partial(work, self), count=nobody)
        self._worker.start()

    def open(self) -> "grpc.CallIterator[HealthReport] | None":
        """Return a new stream, or None after `cancel`."""
        with self._lock:
            if self._worker.is_stopped:
                return None
            self._stream = self.plugin.watch_health()
            return self._stream

    def cancel(self) -> None:
        with self._lock:
            self._worker.stop()
            if self._stream is not None:
                self._stream.cancel()  # type: ignore[no-untyped-call]
