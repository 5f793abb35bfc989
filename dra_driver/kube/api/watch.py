# SPDX-License-Identifier: Apache-2.0
"""A collection that is listed once, and then watched as long as the process runs."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Unpack

from ...process.backoff import Backoff
from ...process.containment import Count, contained, nobody
from ...process.worker import Worker
from ..kinds import Kind
from .client import JSON, ApiClient, EventStream, Selection
from .errors import ApiError, GoneError, NotFoundError, StatusError

log = logging.getLogger(__name__)

_GOOD_WATCH = 5.0
_FORBIDDEN = 403


class Watcher:
    """Calls `on_list` with all objects after each list, and `on_event` with each change after that.

    Both are called on the watcher's thread. Only `stop` ends the watcher. If the server is unavailable, the watcher
    tries again, with growing pauses or after the time that the server requests. If the version is too old, or an
    unexpected exception occurs (which `count` counts), it lists again. `keep` is for large collections, see
    `ApiClient.list`. A reduced object needs no metadata.
    """

    def __init__(  # noqa: PLR0913  # callbacks and times, all by keyword
        self,
        client: ApiClient,
        kind: Kind,
        *,
        keep: Callable[[JSON], JSON] = lambda value: value,
        on_list: Callable[[list[JSON]], None],
        on_event: Callable[[str, JSON], None],
        first_pause: float = 0.5,
        longest_pause: float = 30.0,
        count: Count = nobody,
        **selection: Unpack[Selection],
    ) -> None:
        self._client = client
        self._kind = kind
        self._selection = selection
        self._keep = keep
        self._on_list = on_list
        self._on_event = on_event
        self._longest_pause = longest_pause
        self._backoff = Backoff(first_pause, longest_pause)
        self._count = count
        self._stream: EventStream | None = None
        self._problem: str | None = "not listed yet"
        self.missing = threading.Event()
        self.forbidden: StatusError | None = None
        self._version = ""
        self._worker = Worker(f"watch {kind.plural}", self._round)

    @property
    def problem(self) -> str | None:
        """Why the content of the collection is unknown at the moment, or None."""
        return self._problem and f"{self._kind.plural}: {self._problem}"

    def start(self) -> None:
        """Start the thread. `missing` is set if the server has no such collection. `forbidden` is the server's answer
        while it does not allow the watch.
        """
        self._worker.start()

    def stop(self) -> None:
        """End soon, also during a watch. The thread is a daemon, so callers need not wait for it."""
        self._worker.stop()
        if self._stream is not None:
            self._stream.end()

    def _round(self) -> float:
        """List the objects if that is necessary, and watch them until the watch ends. Returns the seconds to wait."""
        began = time.monotonic()
        asked = 0.0
        try:
            with contained("watch objects", self._kind.plural, self._count, self._begin_anew, expected=(ApiError,)):
                if not self._version:
                    self._list()
                self._watch()
        except GoneError as error:
            log.info("listing %s again: %s", self._kind.plural, error)
            self._version = ""
        except ApiError as error:
            if self._worker.is_stopped:
                return 0.0  # `stop` has closed the connection
            known = str(error) == self._problem
            log.log(logging.DEBUG if known else logging.WARNING, "watching %s: %s", self._kind.plural, error)
            self._problem = str(error)
            if isinstance(error, NotFoundError):
                self.missing.set()
            self.forbidden = error if isinstance(error, StatusError) and error.status == _FORBIDDEN else None
            asked = error.retry_after if isinstance(error, StatusError) else 0.0
        # A watch that lasted for a while was successful. One that ended at once must not be repeated at once.
        if time.monotonic() - began > _GOOD_WATCH:
            self._backoff.reset()
        return max(self._backoff.pause(), min(asked, self._longest_pause))

    def _begin_anew(self, error: Exception) -> None:
        self._version, self._problem = "", repr(error)

    def _list(self) -> None:
        page = self._client.list(self._kind, keep=self._keep, **self._selection)
        if not self._worker.is_stopped:
            self._on_list(page.items)
        self._version = page.resource_version

    def _watch(self) -> None:
        self._stream = self._client.watch(self._kind, self._version, **self._selection)
        self._problem = None
        self.forbidden = None
        if self._worker.is_stopped:
            self._stream.end()
        for event, value in self._stream:
            if self._worker.is_stopped:
                return
            self._version = value["metadata"]["resourceVersion"]
            if event != "BOOKMARK":
                self._on_event(event, self._keep(value))
