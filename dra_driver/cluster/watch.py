# SPDX-License-Identifier: Apache-2.0
"""A collection kept in sight: listed once, then watched for as long as the process lives."""

import logging
import random
import threading
import time
from collections.abc import Callable

from .client import JSON, ApiClient, Kind
from .errors import ApiError, GoneError

log = logging.getLogger(__name__)

_GOOD_WATCH = 5.0


class Watcher:
    """Calls `on_list` with all objects whenever it had to list them, and `on_event` with each change after.

    Both run on the watcher's thread. Nothing ends it but `stop`: a server that is away is asked again, with
    growing pauses; a version that is too old is answered by listing anew.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: Kind,
        *,
        field_selector: str = "",
        on_list: Callable[[list[JSON]], None],
        on_event: Callable[[str, JSON], None],
        first_pause: float = 0.5,
        longest_pause: float = 30.0,
    ) -> None:
        self._client = client
        self._kind = kind
        self._field_selector = field_selector
        self._on_list = on_list
        self._on_event = on_event
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._stopped = threading.Event()
        self._version = ""
        self._thread = threading.Thread(target=self._run, name=f"watch-{kind.plural}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End at the next event or pause; the thread is a daemon and need not be waited for."""
        self._stopped.set()

    def _run(self) -> None:
        pause = self._first_pause
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                if not self._version:
                    self._list()
                self._watch()
            except GoneError as error:
                log.info("listing %s anew: %s", self._kind.plural, error)
                self._version = ""
            except ApiError as error:
                if self._stopped.is_set():
                    return  # whoever stopped it has closed the connection
                log.warning("watching %s: %s", self._kind.plural, error)
            # A watch that held for a while was a good one; what ends at once must not be asked for at once.
            good = time.monotonic() - began > _GOOD_WATCH
            pause = self._first_pause if good else min(pause * 2, self._longest_pause)
            self._stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret

    def _list(self) -> None:
        page = self._client.list(self._kind, field_selector=self._field_selector)
        self._on_list(page.items)
        self._version = page.resource_version

    def _watch(self) -> None:
        for event, value in self._client.watch(self._kind, self._version, field_selector=self._field_selector):
            if self._stopped.is_set():
                return
            self._version = value["metadata"]["resourceVersion"]
            if event != "BOOKMARK":
                self._on_event(event, value)
