# SPDX-License-Identifier: Apache-2.0
"""Writes the report of this daemon to its own row of the clique, on a thread of its own.

A report is written if it differs from the row. A change of `ready` is written at once, because a workload waits for it.
Other changes wait a moment, because a domain passes through several states while its daemons start.
"""

import logging
import time
from dataclasses import dataclass
from typing import Final

from ...kube.api import ApiClient, ApiError, StatusError
from ...kube.api.client import JSON
from ...process.backoff import Backoff
from ...process.containment import Count, nobody
from ...process.worker import Worker
from ..objects import CLIQUES, Clique, DaemonReport, Member, encode_report
from .peers import CliqueWatch
from .times import DaemonTimes

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_REFUSED: Final = (403, 404, 409, 422)
"""The row has moved, or this daemon may not write it. So only another object or policy can help."""
_REFUSED_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a clique."""

    clique: Clique
    position: int

    @property
    def member(self) -> Member:
        return self.clique.members[self.position]


class RowReporter:
    """Reports to the row of `node`, as long as the row has the address of this daemon."""

    def __init__(
        self,
        client: ApiClient,
        watch: CliqueWatch,
        node: str,
        address: str,
        times: DaemonTimes,
        count: Count = nobody,
    ) -> None:
        self._client = client
        self._watch = watch
        self._node = node
        self._address = address
        self._settle = times.settle
        self._wanted: DaemonReport | None = None
        self._answer: tuple[DaemonReport, DaemonReport] | None = None  # a report, and what the server stored of it
        self._differs_since: float | None = None
        self._refused: tuple[int, float] | None = None  # the number of watch events, and the time
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._retry = 0.0
        self._worker = Worker("report to clique", self._attempt, count=count, retry=_LONGEST_PAUSE)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def wake(self) -> None:
        """Compare again, after the clique has changed."""
        self._worker.wake()

    def report(self, report: DaemonReport) -> None:
        """Set the report. Returns at once."""
        self._wanted = report
        self._worker.wake()

    def close(self, seconds: float) -> None:
        """Write the last report and end, within this time."""
        self._worker.finish(seconds)

    def _attempt(self) -> float | None:
        """Write the report if that is due. Returns the seconds until it is due, None if there is nothing to do."""
        wanted, found = self._wanted, self._own_row()
        if wanted is None or found is None or self._is_stored(found.member, wanted):
            self._differs_since = None
            self._backoff.reset()
            return None
        now = time.monotonic()
        if self._differs_since is None:
            self._differs_since = now
        due = self._retry
        if found.member.report.ready == wanted.ready and not self._worker.is_finishing:
            due = max(due, self._differs_since + self._settle)
        if self._refused is not None and self._refused[0] == self._watch.events:
            due = max(due, self._refused[1] + _REFUSED_SECONDS)
        if now < due:
            return due - now
        return self._write(found, wanted)

    def _own_row(self) -> _Row | None:
        clique = self._watch.clique
        position = None if clique is None else clique.row(self._node)
        if clique is None or position is None or clique.members[position].address != self._address:
            return None
        return _Row(clique, position)

    def _is_stored(self, row: Member, wanted: DaemonReport) -> bool:
        """Whether the row has the report. NVIDIA's CRD drops some of its fields."""
        return row.report == wanted or self._answer == (wanted, row.report)

    def _write(self, row: _Row, wanted: DaemonReport) -> float | None:
        path = f"/daemons/{row.position}"
        operations: list[JSON] = [
            {"op": "test", "path": f"{path}/nodeName", "value": self._node},
            {"op": "test", "path": f"{path}/ipAddress", "value": self._address},
        ]
        operations += [
            {"op": "add", "path": f"{path}/{key}", "value": field} for key, field in encode_report(wanted).items()
        ]
        events = self._watch.events
        try:
            answer = self._client.json_patch(CLIQUES, row.clique.name, operations, namespace=row.clique.namespace)
        except ApiError as error:
            log.warning("the state of this daemon cannot be reported: %s", error)
            if isinstance(error, StatusError) and error.status in _REFUSED:
                self._refused = events, time.monotonic()
                return 0.0
            pause = self._backoff.pause()
            self._retry = time.monotonic() + pause
            return pause
        self._refused = None
        self._watch.offer(answer)
        if (found := self._own_row()) is not None:
            self._answer = wanted, found.member.report
        return 0.0
