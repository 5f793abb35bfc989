# SPDX-License-Identifier: Apache-2.0
"""Runs nvidia-imex as a member of its domain, and reports its state.

One loop looks at everything: the members, the process, its status, the certificates. Other threads wait for these, and
wake the loop. The loop itself never waits for the API server or for the command service.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from ...errors import ImexError, NotPlacedError
from ...process.backoff import Backoff
from ...process.containment import Count, nobody
from ...process.endpoints import PREFIX
from ...process.files import write_file
from ...process.words import listed
from ...process.worker import Worker
from ..objects import DaemonReport
from .config import CONFIG_FILE, NODES_FILE, TLS_FILES, render_config, render_nodes
from .control import READY, ImexStatus, Monitor
from .hosts import host_lines, write_hosts
from .peers import DomainPlace
from .process import ImexProcess
from .report import ReportFile
from .times import DaemonTimes

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 5.0
_LIVE_SECONDS: Final = 60.0
_STABLE_SECONDS: Final = 60.0
"""After this time, the pause before the next start is short again."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What does not change while the daemon runs. `hosts` is the hosts file, `tls` the folder with the certificates."""

    domain_uid: str
    address: str
    folder: Path
    hosts: Path
    imex: str
    control: str
    tls: Path | None
    times: DaemonTimes


class DaemonMetrics:
    """The metrics of the daemon."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, namespace=PREFIX, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, namespace=PREFIX, registry=registry)

        self.ready = gauge("imex_ready", "1 if nvidia-imex is READY, else 0.")
        self.peers = gauge("imex_peers", "Other members of the domain in this clique.")
        self.connected = gauge("imex_peers_connected", "Other members that nvidia-imex is connected to.")
        self.restarts = counter("imex_restarts", "Starts of nvidia-imex after the first one.")
        self.signals = counter("imex_signals", "SIGUSR1 sent to nvidia-imex after members or certificates changed.")


class ImexSupervisor:
    """Runs nvidia-imex. `place` gives the place in the domain or raises NotPlacedError, and `tell` gets each report."""

    def __init__(
        self,
        setup: Setup,
        place: Callable[[], DomainPlace],
        tell: Callable[[DaemonReport], None],
        metrics: DaemonMetrics,
        count: Count = nobody,
    ) -> None:
        self._setup = setup
        self._find_place = place
        self._tell = tell
        self._metrics = metrics
        self._count = count
        self._file = ReportFile(setup.folder)
        self._written: DaemonReport | None = None
        self.report = DaemonReport()
        self._problem = ""
        self._place: DomainPlace | None = None
        self._process: ImexProcess | None = None
        self._monitor: Monitor | None = None
        self._started = self._due = 0.0
        self._starts = 0
        self._signalled = 0.0  # the time of the last SIGUSR1, or of the start
        self._changed = False  # since then
        self._unreached: frozenset[int] = frozenset()
        self._backoff = Backoff(setup.times.first_pause, setup.times.longest_pause)
        self._certificates: object = None
        self._worker = Worker("supervise", self._round, interval=_LOOK_SECONDS, count=count, at_end=self._end)
        self._beat = time.monotonic()

    def wake(self) -> None:
        """Look at everything now."""
        self._worker.wake()

    def stop(self) -> None:
        """Let `run` end. Reports at once that the daemon is not ready."""
        self._worker.stop()

    def unready(self) -> str | None:
        """Why nvidia-imex is not ready, or None."""
        report = self.report
        return None if report.ready else report.message or "starting"

    def unhealthy(self) -> str | None:
        """Why this process should be restarted, or None."""
        silent = time.monotonic() - self._beat
        return None if silent < _LIVE_SECONDS else f"nvidia-imex was not looked at for {silent:.0f} s"

    def run(self) -> None:
        """Supervise until `stop`. Ends within the grace period of nvidia-imex and a few seconds."""
        self._worker.run()

    def _round(self) -> float:
        self._beat = time.monotonic()
        self._look()
        return self._patience()

    def _end(self) -> None:
        self._publish(DaemonReport(message="the daemon ends"))
        self._end_process()

    def close(self) -> None:
        """Let readers of the report know that this daemon is gone."""
        self._file.close()

    def _look(self) -> None:
        try:
            self._collect()
            self._follow_members()
            self._follow_certificates()
            if self._place is not None and self._process is None and time.monotonic() >= self._due:
                self._start(self._place)
        except NotPlacedError as error:
            self._problem = str(error)
        except (ImexError, OSError) as error:
            self._fail(str(error))
        self._send_signal()
        self._publish(self._current())

    def _patience(self) -> float:
        """The seconds until the loop has something to do without being woken."""
        times = [time.monotonic() + _LOOK_SECONDS]
        if self._process is None:
            times += [self._due] if self._place is not None else []
        elif self._needs_signal():
            times.append(self._signal_due)
        return max(0.0, min(times) - time.monotonic())

    # The members

    def _follow_members(self) -> None:
        """Write the hosts file if the members have changed.

        A daemon that has lost its place keeps the last members, because the workload uses its connections.
        """
        try:
            place = self._find_place()
        except NotPlacedError:
            if self._place is None:
                raise
            return
        before = self._place
        if place == before:
            return
        lines = host_lines(self._setup.domain_uid, place.slots, place.addresses)
        try:
            write_hosts(self._setup.hosts, lines)
        except OSError as error:
            raise ImexError(f"the hosts file of the pod cannot be written: {error}") from error
        self._place = place
        self._metrics.peers.set(len(place.peers))
        if before is None or before.addresses != place.addresses:
            members = ", ".join(f"{at}={node}" for at, node in sorted(place.nodes.items()))
            log.info("members of the domain: %s", members)
        if before is None:
            self._problem = ""
        if before is None or self._process is None:
            return
        if (before.index, before.slots) != (place.index, place.slots):
            # nvidia-imex keeps the index that it found when it started.
            log.warning("the index in the domain is %d instead of %d: restarting", place.index, before.index)
            self._end_process()
            self._due = 0.0
            return
        self._changed |= before.addresses != place.addresses
        # A peer whose nvidia-imex has just become ready was not there when nvidia-imex tried it. The pauses between its
        # own attempts grow from 15 seconds on.
        self._unreached |= place.ready - before.ready - {place.index}
        self._hurry()

    def _follow_certificates(self) -> None:
        folder = self._setup.tls
        if folder is None:
            return
        try:
            stats = [(folder / name).stat() for name in TLS_FILES]
        except OSError as error:
            raise ImexError(f"the domain's certificate cannot be read: {error}") from error
        found = [(stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
        if found != self._certificates:
            before, self._certificates = self._certificates, found
            if before is not None and self._process is not None:
                log.info("the certificates have changed")
                self._changed = True
                self._hurry()

    # The process

    def _start(self, place: DomainPlace) -> None:
        setup = self._setup
        config = setup.folder / CONFIG_FILE
        texts = {
            setup.folder / NODES_FILE: render_nodes(setup.domain_uid, place.slots),
            config: render_config(setup.folder, setup.domain_uid, setup.address, setup.tls),
        }
        self._started = time.monotonic()
        try:
            for path, text in texts.items():
                write_file(path, text.encode(), path.with_name(f".{path.name}.new"))
            self._process = ImexProcess(setup.imex, ("-c", str(config)), self.wake)
        except (ImexError, OSError):
            self._due = time.monotonic() + self._backoff.pause()
            raise
        self._monitor = Monitor(setup.control, config, place.index, self.wake, setup.times, self._count)
        self._note_signal()
        self._starts += 1
        if self._starts > 1:
            self._metrics.restarts.inc()
        log.info("nvidia-imex started", extra={"pid": self._process.pid, "index": place.index, "starts": self._starts})

    def _collect(self) -> None:
        """Notice that the process has ended."""
        process = self._process
        if process is None or process.is_running():
            return
        if time.monotonic() - self._started >= _STABLE_SECONDS:
            self._backoff.reset()
        pause = self._backoff.pause()
        self._due = time.monotonic() + pause
        self._forget_process()
        self._fail(process.reason())
        log.info("nvidia-imex is started again in %.1f s", pause)

    def _end_process(self) -> None:
        process = self._process
        if process is not None:
            self._forget_process()
            process.stop(self._setup.times.grace)
            log.info("nvidia-imex ended")

    def _forget_process(self) -> None:
        self._process = None
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None

    def _hurry(self) -> None:
        if self._monitor is not None:
            self._monitor.hurry()

    # The signal after which nvidia-imex connects to all peers again

    @property
    def _signal_due(self) -> float:
        """The earliest time for the next signal. nvidia-imex would drop it before."""
        return self._signalled + self._setup.times.signal

    def _note_signal(self) -> None:
        self._signalled, self._changed, self._unreached = time.monotonic(), False, frozenset()

    def _needs_signal(self) -> bool:
        """Whether nvidia-imex needs a signal, and has started far enough to handle signals."""
        status = ImexStatus() if self._monitor is None else self._monitor.status
        if status.connected is not None:
            self._unreached -= status.connected
        return bool(status.state) and (self._changed or bool(self._unreached))

    def _send_signal(self) -> None:
        if self._process is not None and self._needs_signal() and time.monotonic() >= self._signal_due:
            self._process.reload()
            self._note_signal()
            self._metrics.signals.inc()
            log.info("nvidia-imex connects to its peers again")
            self._hurry()

    # The report

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            log.error("%s", problem)
        self._problem = problem

    def _current(self) -> DaemonReport:
        place, monitor = self._place, self._monitor
        if place is None or self._process is None or monitor is None:
            return DaemonReport(False, "", "DOWN" if place else "", self._problem)
        status = monitor.status
        if not status.state:
            # After a failed start, its reason says more.
            waits = self._problem or f"nvidia-imex does not answer: {status.problem}"
            return DaemonReport(False, "", "DOWN", waits)
        self._problem = ""
        if status.state != READY:
            return DaemonReport(False, status.state, "DOWN", f"nvidia-imex is {status.state}")
        if status.connected is None:
            return DaemonReport(True, READY, "", "")
        self._metrics.connected.set(len(place.peers & status.connected))
        away = sorted(place.nodes[peer] for peer in place.peers - status.connected)
        if not away:
            return DaemonReport(True, READY, "UP", "")
        return DaemonReport(True, READY, "DEGRADED", f"not connected to {listed(away)}")

    def _publish(self, report: DaemonReport) -> None:
        self.report = report
        self._metrics.ready.set(report.ready)
        if report == self._written:
            return
        self._tell(report)
        try:
            self._file.write(report)
        except OSError as error:
            log.error("the report for the plugin of this node cannot be written: %s", error)
            return
        self._written = report
        log.info(
            "state: %s", report.message or report.domain_state, extra={"ready": report.ready, "imex": report.state}
        )
