# SPDX-License-Identifier: Apache-2.0
"""Reports to claims when their MPS daemons end or are started again.

dra-mps runs the daemons and restarts daemons that end. A program whose daemon has ended gets errors, and only its user
can restart it. So each claim gets an Event, a condition in its status, and unhealthy devices while no daemon serves
them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dra_driver.errors import MpsError
from dra_driver.process.worker import Worker

from ...claims.boundary import ClaimBoundary, unheard
from ...claims.model import ClaimRef, Plan, Record
from ...reports.devicestatus import Trouble
from .step import mps_steps_of
from .supervisor import Status

log = logging.getLogger(__name__)

DOWN: Final = "MpsDaemonDown"
RESTARTED: Final = "MpsDaemonRestarted"

_LOOK_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of a claim when it was last checked: `problem` if it was not served, `since` when its daemon was
    started.
    """

    devices: tuple[str, ...]
    problem: str
    since: float


@dataclass(frozen=True, slots=True)
class ServedDevices:
    """Devices that one daemon serves to claims, and its status."""

    devices: tuple[str, ...]
    status: Status


class MpsWatch:
    """Checks `statuses` (which may raise MpsError) for the prepared claims of `records`. `on_restarts` is called with
    the number of new restarts of daemons.
    """

    def __init__(
        self,
        records: Callable[[], Iterable[Record]],
        statuses: Callable[[], Mapping[str, Status]],
        boundary: ClaimBoundary,
        on_restarts: Callable[[int], None],
    ) -> None:
        self._records = records
        self._statuses = statuses
        self._boundary = boundary
        self._on_claim: Callable[[ClaimRef], None] = unheard
        self._on_health: Callable[[], None] = unheard
        self._on_restarts = on_restarts
        self._seen: dict[str, _Seen] = {}
        self._restarted: dict[str, float] = {}
        self._served: dict[str, ServedDevices] = {}
        self._started: dict[str, Status] = {}
        self._worker = Worker("watch MPS", self.look, count=boundary.count)

    def start(self, on_claim: Callable[[ClaimRef], None], on_health: Callable[[], None]) -> None:
        """Start the thread. `on_claim` is called for a claim whose report has changed, and `on_health` if the health of
        devices has changed.
        """
        self._on_claim, self._on_health = on_claim, on_health
        self._worker.start(after=_LOOK_SECONDS)

    def stop(self) -> None:
        """Stop the thread."""
        self._worker.stop()

    def trouble(self, uid: str) -> Trouble | None:
        """The problem or restart to report in the status of a prepared claim, or None."""
        seen = self._seen.get(uid)
        if seen is not None and seen.problem:
            return Trouble(False, DOWN, seen.problem)
        restarted = self._restarted.get(uid)
        if restarted is None:
            return None
        when = datetime.fromtimestamp(restarted, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Trouble(True, RESTARTED, f"the MPS daemon was restarted at {when}: restart containers from before")

    def sick(self) -> dict[str, tuple[float, str]]:
        """The devices that no daemon serves, by name, with the time since when, and the reason."""
        seen = list(self._seen.values())
        return {
            device: (served.since, served.problem) for served in seen if served.problem for device in served.devices
        }

    def served(self) -> list[ServedDevices]:
        """The devices that prepared claims use through MPS, when they were last checked."""
        return list(self._served.values())

    def prepared(self, plan: Plan) -> None:
        """A claim with this plan was prepared."""
        if mps_steps_of(plan):
            self._worker.wake(_LOOK_SECONDS)

    def look(self) -> float:
        """Check all claims once. Returns the seconds until the next time. Without claims that use MPS, that is long."""
        wanted = {record.plan.claim.uid: record for record in self._records() if mps_steps_of(record.plan)}
        for uid in self._seen.keys() - wanted.keys():
            self._seen.pop(uid)
            self._restarted.pop(uid, None)
        statuses: Mapping[str, Status] = {}
        problem = "dra-mps has not started the MPS daemon yet"
        try:
            statuses = self._statuses() if wanted else {}
        except MpsError as error:
            problem = f"the MPS daemon has ended: {error}"
        self._served = {
            step.name.server: ServedDevices(step.devices, statuses.get(step.name.server, Status(problem)))
            for record in wanted.values()
            for step in mps_steps_of(record.plan)
        }
        self._count_restarts()
        for uid, record in wanted.items():
            with self._boundary.around("watch MPS of claim", record.plan.claim):
                self._compare(uid, record, statuses, problem)
        return _LOOK_SECONDS if wanted else _IDLE_SECONDS

    def _compare(self, uid: str, record: Record, statuses: Mapping[str, Status], missing: str) -> None:
        claim, before = record.plan.claim, self._seen.get(uid)
        found = [(step, statuses.get(step.name.server, Status(missing))) for step in mps_steps_of(record.plan)]
        failed = [(step, status) for step, status in found if status.problem]
        devices = tuple(name for step, _ in failed or found for name in step.devices)
        if failed:
            text = "; ".join(dict.fromkeys(f"MPS does not serve the devices: {one.problem}" for _, one in failed))
            unchanged = before is not None and before.problem == text
            since = before.since if before is not None and unchanged else time.time()
            self._seen[uid] = _Seen(devices, text, since)
            if not unchanged:
                self._boundary.on_event(claim, DOWN, text)
        else:
            text = "the MPS daemon of this claim was restarted; containers that used it have to be restarted"
            self._seen[uid] = _Seen(devices, "", max(status.since for _, status in found))
            unchanged = before is None or before == self._seen[uid]
            if not unchanged:
                self._restarted[uid] = self._seen[uid].since
                self._boundary.on_event(claim, RESTARTED, text)
        if not unchanged:
            log.warning("%s", text, extra={"claim": str(claim), "claim_uid": uid})
            self._on_claim(claim)
            self._on_health()

    def _count_restarts(self) -> None:
        before = self._started
        self._started = {
            server: before.get(server, served.status) if served.status.problem else served.status
            for server, served in self._served.items()
        }
        restarts = 0
        for server, now in self._started.items():
            earlier = before.get(server, now)
            if not earlier.problem and earlier.since != now.since:
                restarts += max(1, now.restarts - earlier.restarts)  # a new dra-mps counts from 0
        if restarts:
            self._on_restarts(restarts)
