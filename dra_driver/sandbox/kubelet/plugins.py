# SPDX-License-Identifier: Apache-2.0
"""The registered plugins of every driver: which instance is called, and what losing the last one means.

Several instances of a driver may be registered at once (a rolling update). Calls go to the newest one
that is connected, else to the newest. When no instance has been connected for a while, `wipe` is called:
devices of a driver that is gone must not be scheduled any more.
"""

import threading
from collections.abc import Callable

from .health import HealthWatch
from .journal import Journal
from .options import Periods
from .plugin import Plugin, Registration
from .registration import RegistrationError
from .state import ClaimError


class Plugins:
    """All methods may be called from any thread."""

    def __init__(self, periods: Periods, wipe: Callable[[str], None], health: HealthWatch, journal: Journal) -> None:
        """`wipe(driver)` is called from a thread of its own."""
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
        """Register an instance and connect to it. Raises RegistrationError when its endpoint is taken."""
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
        """The instance to call. Raises ClaimError when none is registered."""
        with self._lock:
            instances = self._plugins.get(driver, [])
            if not instances:
                raise ClaimError(f"DRA driver {driver} is not registered")
            return next((plugin for plugin in reversed(instances) if plugin in self._connected), instances[-1])

    def registered(self, driver: str) -> tuple[Registration, ...]:
        """The registered instances, oldest first."""
        with self._lock:
            return tuple(plugin.registration for plugin in self._plugins.get(driver, ()))

    def connected(self, driver: str) -> tuple[Registration, ...]:
        """Those of them that are connected."""
        with self._lock:
            return tuple(plugin.registration for plugin in self._plugins.get(driver, ()) if plugin in self._connected)

    def pending_wipes(self) -> frozenset[str]:
        """The drivers whose ResourceSlices go unless one of their plugins connects in time."""
        with self._lock:
            return frozenset(self._pending_wipes)

    def stop(self) -> None:
        """Close all connections; nothing is wiped on this account."""
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
        """Start the clock of a driver without a connection, stop it when there is one. The lock is held."""
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
