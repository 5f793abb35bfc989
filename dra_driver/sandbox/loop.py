# SPDX-License-Identifier: Apache-2.0
"""Controllers that act on what there is rather than on what happened: run again whenever anything changes."""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from ..cluster import NODES, ApiClient, ApiError, Watcher
from .pods import (
    CLAIMS,
    CLASSES,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    REPLICA_SETS,
    SLICES,
    STATEFUL_SETS,
    TEMPLATES,
)

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_WATCHED = (
    *(PODS, CLAIMS, TEMPLATES, SLICES, CLASSES, NODES),
    *(DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, JOBS),
)


class Controller(Protocol):
    """Something that puts right whatever it finds wrong."""

    def step(self) -> None:
        """Do once whatever is missing. Raises ApiError."""

    def close(self) -> None:
        """There are no more steps."""


class ControlLoop:
    """Steps the controllers, in order, on a thread of its own, after every change of what they look at."""

    def __init__(self, client: ApiClient, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._watchers = [
            Watcher(client, kind, on_list=lambda _: self._changed.set(), on_event=lambda *_: self._changed.set())
            for kind in _WATCHED
        ]
        self._thread = threading.Thread(target=self._run, name="control-loop", daemon=True)

    def start(self) -> None:
        """Begin."""
        for watcher in self._watchers:
            watcher.start()
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        for watcher in self._watchers:
            watcher.stop()
        self._stopped.set()
        self._changed.set()
        self._thread.join(10)
        for controller in self._controllers:
            controller.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._changed.wait()
            self._changed.clear()
            for controller in self._controllers:
                try:
                    controller.step()
                except ApiError as error:
                    log.debug("%s looks again: %s", type(controller).__name__, error)  # somebody wrote first, mostly
                    self._stopped.wait(_RETRY_SECONDS)
                    self._changed.set()
