# SPDX-License-Identifier: Apache-2.0
"""The plugins of a node: the sockets in the registration directory, and the registered plugins of every driver.

Several instances of a driver can be registered at once (a rolling update). Kubelet calls the newest connected instance,
or else the newest. If no instance has been connected for some time, `wipe` is called, because the devices of such a
driver must not be scheduled.

Kubelet learns of sockets from inotify. This kubelet scans the directory often, and sees the same changes. A replaced
socket counts as a new one; inode and birth distinguish the two (a bound socket's mtime does not change).
"""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .health import HealthWatch
from .journal import Journal
from .options import Backoff, Periods
from .plugin import Plugin, Registration, RegistrationError
from .state import ClaimError


class Plugins:
    """The registered plugins. All methods may be called from any thread."""

    def __init__(self, periods: Periods, wipe: Callable[[str], None], health: HealthWatch, journal: Journal) -> None:
        """`wipe(driver)` is called on another thread."""
        self._periods = periods
        self._wipe = wipe
        self._health = health
        self._journal = journal
        self._lock = threading.Lock()
        self._plugins: dict[str, list[Plugin]] = {}
        self._connected: set[Plugin] = set()
        self._pending_wipes: dict[str, threading.Timer] = {}
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

    def stop(self) -> None:
        """Close all connections. This deletes no ResourceSlices."""
        with self._lock:
            self._stopped = True
            plugins = [plugin for instances in self._plugins.values() for plugin in instances]
            for timer in self._pending_wipes.values():
                timer.cancel()
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
        """Start the timer of a driver without a connection, or cancel it. The caller holds the lock."""
        pending = self._pending_wipes.get(driver)
        if any(plugin in self._connected for plugin in self._plugins.get(driver, ())):
            if pending:
                pending.cancel()
                del self._pending_wipes[driver]
        elif pending is None and not self._stopped:
            timer = threading.Timer(self._periods.wipe_delay, self._wipe_now, (driver,))
            timer.daemon = True
            self._pending_wipes[driver] = timer
            timer.start()

    def _wipe_now(self, driver: str) -> None:
        self._wipe(driver)
        with self._lock:
            self._pending_wipes.pop(driver, None)


SocketId = tuple[int, int]
"""The inode and the birth of a socket, which identify it."""


def scan(directory: Path) -> Mapping[str, SocketId]:
    """Return all sockets below `directory`, by path. Names that begin with a dot are ignored."""
    return dict(_scan(directory))


def _scan(directory: Path) -> Iterator[tuple[str, SocketId]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue  # removed after the directory was read
        if stat.S_ISDIR(status.st_mode):
            yield from _scan(Path(entry.path))
        elif stat.S_ISSOCK(status.st_mode):
            yield entry.path, (status.st_ino, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration and its socket."""

    socket: SocketId
    registration: Registration


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed registrations of a socket in a row, and the time of the next attempt (monotonic seconds)."""

    count: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class SocketChanges:
    """The paths to deregister, and the paths to register."""

    deregister: tuple[str, ...]
    register: tuple[str, ...]


def plan(
    sockets: Mapping[str, SocketId],
    registered: Mapping[str, Registered],
    busy: frozenset[str],
    failures: Mapping[str, Failures],
    now: float,
) -> SocketChanges:
    """Return the changes for these `sockets`. Paths in `busy` have a registration in progress."""
    gone = tuple(path for path, known in registered.items() if path not in busy and sockets.get(path) != known.socket)
    new = tuple(
        path
        for path in sockets
        if path not in busy
        and (path not in registered or path in gone)
        and (path not in failures or failures[path].retry_at <= now)
    )
    return SocketChanges(gone, new)


class PluginWatcher:
    """Keeps registrations in line with the sockets. Each registration runs on its own thread."""

    def __init__(
        self,
        directory: Path,
        period: float,
        retry: Backoff,
        register: Callable[[str], Registration],
        deregister: Callable[[Registration], None],
        journal: Journal,
    ) -> None:
        """`register(path)` returns a registration or raises RegistrationError."""
        self._directory = directory
        self._period = period
        self._retry = retry
        self._register = register
        self._deregister = deregister
        self._journal = journal
        self._lock = threading.Lock()
        self._registered: dict[str, Registered] = {}
        self._failures: dict[str, Failures] = {}
        self._operations: dict[str, threading.Thread] = {}

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set, then wait for registrations in progress."""
        while not stop.is_set():
            self._reconcile(scan(self._directory))
            stop.wait(self._period)
        for operation in list(self._operations.values()):
            operation.join()

    def _reconcile(self, sockets: Mapping[str, SocketId]) -> None:
        with self._lock:
            todo = plan(sockets, self._registered, frozenset(self._operations), self._failures, time.monotonic())
            gone = [self._registered.pop(path) for path in todo.deregister]
        for known in gone:
            self._deregister(known.registration)
        for path in todo.register:
            operation = threading.Thread(target=self._attempt, args=(path, sockets[path]), daemon=True)
            self._operations[path] = operation
            operation.start()

    def _attempt(self, path: str, socket: SocketId) -> None:
        registration = None
        try:
            registration = self._register(path)
        except RegistrationError as error:
            self._failed(path, str(error))
        with self._lock:
            if registration is not None:
                self._registered[path] = Registered(socket, registration)
                self._failures.pop(path, None)
            self._operations.pop(path, None)

    def _failed(self, path: str, error: str) -> None:
        with self._lock:
            known = self._failures.get(path)
            count = known.count + 1 if known else 1
            self._failures[path] = Failures(count, time.monotonic() + self._retry.delay(count))
        self._journal.record("PluginRegistrationFailed", path, error)
