# SPDX-License-Identifier: Apache-2.0
"""The loop that reconciles ComputeDomains after each change, and its metrics.

Watches tell which domains a change concerns, and a few threads reconcile these. At rest, nothing is asked or written.
"""

import logging
import threading
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver.domains.objects import NOT_READY, READY
from dra_driver.kube.api import ApiClient, ApiError, ConflictError
from dra_driver.kube.api.events import EventRecorder
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import Count, contained, nobody
from dra_driver.process.endpoints import PREFIX

from ..collection import dialect_when_known
from .objects import DaemonSettings
from .queue import Queue
from .reconcile import NotLeaderError, Reconciler
from .view import View

log = logging.getLogger(__name__)

_LISTING_SECONDS = 1.0  # the longest pause between two looks at whether all watches have listed


class DomainMetrics:
    """The metrics of ComputeDomains."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace=PREFIX, registry=registry)
        self.info = gauge("compute_domain_info", "ComputeDomains, by status.", ["status"])
        self.failing = gauge("compute_domains_failing", "ComputeDomains whose objects could not be written.")
        text = "Writes for ComputeDomains, by resource and verb."
        self.writes = Counter("compute_domain_writes", text, ["resource", "verb"], namespace=PREFIX, registry=registry)
        for status in (READY, NOT_READY):
            self.info.labels(status)


@dataclass(frozen=True, slots=True)
class DomainTiming:
    """How long the loop waits, in seconds, and how many domains it reconciles at the same time."""

    settle: float = 0.1
    status: float = 1.0  # between two writes of one domain's status
    first_retry: float = 0.2
    longest_retry: float = 60.0
    workers: int = 4


class DomainController:
    """Reconciles all ComputeDomains. `namespace` is that of the driver. `run` may be called again after it returned.

    `count` counts unexpected errors.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        settings: DaemonSettings,
        recorder: EventRecorder,
        metrics: DomainMetrics,
        timing: DomainTiming | None = None,
        count: Count = nobody,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._settings = settings
        self._recorder = recorder
        self._metrics = metrics
        self._timing = timing or DomainTiming()
        self._count = count
        self._view: View | None = None
        self._trouble: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the cluster is not known at the moment, or None. The problems of single domains are in their status."""
        view = self._view
        return view.problem if view is not None else self._trouble

    def run(self, stop: threading.Event) -> None:
        """Reconcile until `stop` is set."""
        timing = self._timing
        backoff = Backoff(timing.first_retry, timing.longest_retry)

        def after(error: ApiError) -> float:
            self._trouble, pause = str(error), backoff.pause()
            log.warning("ComputeDomains cannot be read yet: %s", error, extra={"retry_seconds": round(pause, 1)})
            return pause

        dialect = dialect_when_known(self._client, stop, after)
        self._trouble = None
        if dialect is None:
            return
        queue = Queue(timing.settle, timing.first_retry, timing.longest_retry)
        view = self._view = View(
            self._client,
            dialect,
            self._namespace,
            queue.add,
            daemons=not self._settings.host_managed,
            policies=self._settings.network_policy,
            certificates=self._settings.issuer is not None,
        )
        reconciler = Reconciler(
            self._client,
            dialect,
            view,
            self._namespace,
            self._settings,
            self._recorder,
            self._metrics.writes,
            stop,
            queue.later,
            timing.status,
        )
        view.start()
        try:
            if self._wait_for(view, stop):
                queue.add(view.known())
                self._work_until(stop, queue, reconciler)
        finally:
            view.stop()
            self._view = None

    def _wait_for(self, view: View, stop: threading.Event) -> bool:
        """Wait until everything was listed: before that, a domain that exists may be unknown. False if stopped."""
        told = False
        pauses = Backoff(0.02, _LISTING_SECONDS)
        while not view.complete and not stop.is_set():
            if not view.is_defined and not told:
                told = True
                log.warning(
                    "the API server has no ComputeDomains: install the CustomResourceDefinitions of the Helm chart,"
                    " or start this process without --compute-domains; other work goes on"
                )
            stop.wait(pauses.pause())
        return not stop.is_set()

    def _work_until(self, stop: threading.Event, queue: Queue, reconciler: Reconciler) -> None:
        work = partial(self._work, queue, reconciler)
        names = [f"domains-{number}" for number in range(self._timing.workers)]
        threads = [threading.Thread(target=work, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        stop.wait()
        queue.close()
        for thread in threads:
            thread.join()

    def _work(self, queue: Queue, reconciler: Reconciler) -> None:
        while (uid := queue.take()) is not None:
            succeeded = False
            try:
                with contained("reconcile compute domain", uid, self._count, expected=(ApiError, NotLeaderError)):
                    reconciler.reconcile(uid)
                    succeeded = True
            except NotLeaderError:
                return
            except ConflictError as error:
                log.debug("ComputeDomain %s: %s", uid, error)
            except ApiError as error:
                log.warning("ComputeDomain %s: %s", uid, error)
            if succeeded:
                queue.done(uid)
            else:
                queue.failed(uid)
            self._measure(queue, reconciler)

    def _measure(self, queue: Queue, reconciler: Reconciler) -> None:
        ready = list(reconciler.ready.values())
        self._metrics.info.labels(READY).set(sum(ready))
        self._metrics.info.labels(NOT_READY).set(len(ready) - sum(ready))
        self._metrics.failing.set(queue.failing)
