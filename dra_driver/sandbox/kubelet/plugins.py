# SPDX-License-Identifier: Apache-2.0
"""The plugins of a node: the sockets in the registration directory, and the registered plugins of every driver.

Several instances of a driver can be registered at once (a rolling update). Kubelet calls the newest connected instance,
or else the newest. If no instance has been connected for some time, the ResourceSlices of the driver are deleted,
because its devices must not be scheduled.

Kubelet learns of sockets from inotify. This kubelet scans the directory often, and sees the same changes. A replaced
socket counts as a new one; inode and birth distinguish the two (a bound socket's mtime does not change). Plugins are
registered one after the other.
"""

import math
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import nobody
from dra_driver.process.worker import Worker

from .health import PluginHealth
from .journal import Journal
from .options import KubeletOptions, Periods
from .plugin import Plugin, Registration, RegistrationError, register
from .state import ClaimError

SocketId = tuple[int, int]
"""The inode and the birth of a socket, which identify it."""


class Plugins:
    """The registered plugins. All methods may be called from any thread."""

    def __init__(self, periods: Periods, health: PluginHealth, journal: Journal) -> None:
        self._periods = periods
        self._health = health
        self._journal = journal
        self._lock = threading.Lock()
        self._plugins: dict[str, list[Plugin]] = {}
        self._connected: set[Plugin] = set()
        self._pending_wipes: dict[str, float] = {}
        """The monotonic time at which the slices of a driver without a connection are deleted."""
        self._stopped = False

    def add(self, registration: Registration) -> None:
        """Register an instance and connect to it. Raises RegistrationError if its endpoint is taken."""
        driver = registration.driver
        plugin = Plugin(registration, self._periods, self._connection_changed)
        with self._lock:
            instances = self._plugins.setdefault(driver, [])
            if any(other.registration.endpoint == registration.endpoint for other in instances):
                plugin.close()
                raise RegistrationError(
                    "RegisterPlugin error -- plugin registration failed with err: "
                    f"endpoint {registration.endpoint} already registered for DRA driver plugin {driver}"
                )
            instances.append(plugin)
            self._schedule_wipe(driver)
            plugin.connect()
            self._health.follow(driver, plugin)
        self._journal.record("PluginRegistered", driver, f"{registration.service} at {registration.endpoint}")

    def remove(self, registration: Registration) -> None:
        """Deregister an instance and close its connection."""
        driver = registration.driver
        with self._lock:
            instances = self._plugins.get(driver, [])
            plugin = next((other for other in instances if other.registration == registration), None)
            if plugin is None:
                return
            instances.remove(plugin)
            self._connected.discard(plugin)
            self._health.follow(driver, instances[-1] if instances else None)
            if not instances:
                del self._plugins[driver]
            self._schedule_wipe(driver)
        plugin.close()
        self._journal.record("PluginDeregistered", driver, registration.endpoint)

    def get(self, driver: str) -> Plugin:
        """Return the instance to call. Raises ClaimError if none is registered."""
        with self._lock:
            instances = self._plugins.get(driver, [])
            if not instances:
                raise ClaimError(f"DRA driver {driver} is not registered")
            return next((plugin for plugin in reversed(instances) if plugin in self._connected), instances[-1])

    def registered(self, driver: str) -> tuple[Registration, ...]:
        """Return the registered instances, oldest first."""
        with self._lock:
            return tuple(plugin.registration for plugin in self._plugins.get(driver, ()))

    def connected(self, driver: str) -> tuple[Registration, ...]:
        """Return the registered instances that are connected."""
        with self._lock:
            return tuple(plugin.registration for plugin in self._plugins.get(driver, ()) if plugin in self._connected)

    def pending_wipes(self) -> frozenset[str]:
        """Return the drivers whose ResourceSlices will be deleted if none of their plugins connects in time."""
        with self._lock:
            return frozenset(self._pending_wipes)

    def take_due_wipes(self) -> tuple[str, ...]:
        """Return the drivers that had no connection for too long. Each of them is returned once."""
        now = time.monotonic()
        with self._lock:
            due = tuple(driver for driver, deadline in self._pending_wipes.items() if deadline <= now)
            for driver in due:
                del self._pending_wipes[driver]
        return due

    def stop(self) -> None:
        """Close all connections. This deletes no ResourceSlices."""
        with self._lock:
            self._stopped = True
            plugins = [plugin for instances in self._plugins.values() for plugin in instances]
            self._pending_wipes.clear()
            for driver in self._plugins:
                self._health.follow(driver, None)
        for plugin in plugins:
            plugin.close()

    def _connection_changed(self, plugin: Plugin, connected: bool) -> None:
        driver = plugin.registration.driver
        with self._lock:
            if self._stopped or plugin not in self._plugins.get(driver, ()):
                return
            if connected:
                self._connected.add(plugin)
            else:
                self._connected.discard(plugin)
            self._schedule_wipe(driver)
        reason = "PluginConnected" if connected else "PluginDisconnected"
        self._journal.record(reason, driver, plugin.registration.endpoint)

    def _schedule_wipe(self, driver: str) -> None:
        """Set the deadline of a driver without a connection, or remove it. The caller holds the lock."""
        if any(plugin in self._connected for plugin in self._plugins.get(driver, ())):
            self._pending_wipes.pop(driver, None)
        elif not self._stopped:
            self._pending_wipes.setdefault(driver, time.monotonic() + self._periods.wipe_delay)


def scan(directory: Path) -> Mapping[str, SocketId]:
    """Return all sockets in `directory`, by path. Names that begin with a dot are ignored."""
    found = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed after the directory was read
                status = entry.stat()
                if stat.S_ISSOCK(status.st_mode) and not entry.name.startswith("."):
                    found[entry.path] = (status.st_ino, status.st_mtime_ns)
    return found


@dataclass(slots=True)
class _Socket:
    """A socket: its registration, or when its registration is tried again."""

    id: SocketId
    backoff: Backoff
    registration: Registration | None = None
    retry_at: float = 0.0
    """Monotonic seconds."""


class PluginWatcher:
    """Keeps registrations in line with the sockets, on a thread of its own."""

    def __init__(
        self, options: KubeletOptions, plugins: Plugins, journal: Journal, wipe: Callable[[str], None]
    ) -> None:
        """`wipe(driver)` is called on the thread for each driver that had no connection for too long."""
        self._options = options
        self._plugins = plugins
        self._journal = journal
        self._wipe = wipe
        self._sockets: dict[str, _Socket] = {}
        self._worker = Worker("watch plugin sockets", self._round, interval=options.periods.scan, count=nobody)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread, and wait for a registration that has begun."""
        self._worker.stop(math.inf)

    def _round(self) -> None:
        found = scan(self._options.registration_dir)
        for path, socket in list(self._sockets.items()):
            if found.get(path) != socket.id:
                del self._sockets[path]
                if socket.registration is not None:
                    self._plugins.remove(socket.registration)
        for path, id in found.items():
            socket = self._sockets.setdefault(path, _Socket(id, self._options.periods.register_retry.backoff()))
            if socket.registration is None and socket.retry_at <= time.monotonic():
                self._register(path, socket)
        for driver in self._plugins.take_due_wipes():
            self._wipe(driver)

    def _register(self, path: str, socket: _Socket) -> None:
        try:
            socket.registration = register(path, self._options, self._plugins.add, self._plugins.remove)
        except RegistrationError as error:
            socket.retry_at = time.monotonic() + socket.backoff.pause()
            self._journal.record("PluginRegistrationFailed", path, str(error))
