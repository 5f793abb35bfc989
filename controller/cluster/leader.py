# SPDX-License-Identifier: Apache-2.0
"""The work of the elected process: it watches the cluster once, for all parts that work on what the watches report."""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from dra_driver.kube.api import ApiClient, ApiError, newest_dialect
from dra_driver.kube.resource.codec import Dialect
from dra_driver.process.backoff import Backoff

from .view import ClusterView

log = logging.getLogger(__name__)

FIRST_RETRY, LONGEST_RETRY = 1.0, 60.0


class ClusterPart(Protocol):
    """A part of the work. After `stop`, `start` may be called again with another view."""

    def start(self, view: ClusterView, stop: threading.Event) -> None:
        """Begin to work, on threads of the part. The watches of the view start after this. When `stop` is set, this
        process may be the leader no longer, and nothing more is written.
        """

    def stop(self) -> None:
        """Return when the work has ended. The stop event is set before."""


class LeaderWork:
    """Runs `parts` while this process is the leader. `run` may be called again after it has returned.

    With `domains`, the view has also what concerns ComputeDomains. `first_retry` is a time in seconds.
    """

    def __init__(
        self, client: ApiClient, parts: Sequence[ClusterPart], *, domains: bool, first_retry: float = FIRST_RETRY
    ) -> None:
        self._client = client
        self._parts = parts
        self._domains = domains
        self._first_retry = first_retry
        self._view: ClusterView | None = None
        self._trouble: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the cluster is not known at the moment, or None. Also None if this process is not the leader."""
        view = self._view
        return self._trouble or (view.problem if view is not None else None)

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set. Returns when all parts have ended."""
        self._trouble = "the cluster was not read yet"
        dialect = self._dialect(stop)
        if dialect is not None:
            self._work_on(ClusterView(self._client, dialect, domains=self._domains), stop)
        self._trouble = None

    def _work_on(self, view: ClusterView, stop: threading.Event) -> None:
        self._view, self._trouble = view, None
        for part in self._parts:
            part.start(view, stop)
        view.start()
        stop.wait()
        for part in self._parts:
            part.stop()
        view.stop()
        self._view = None

    def _dialect(self, stop: threading.Event) -> Dialect | None:
        """The version of resource.k8s.io to use. Asks the API server until there is an answer. None if stopped."""
        backoff = Backoff(self._first_retry, LONGEST_RETRY)
        while not stop.is_set():
            try:
                return newest_dialect(self._client)
            except ApiError as error:
                pause = backoff.pause()
                self._trouble = str(error)
                log.warning("the cluster cannot be read yet: %s", error, extra={"retry_seconds": round(pause, 1)})
                stop.wait(pause)
        return None
