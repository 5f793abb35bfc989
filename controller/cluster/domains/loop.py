# SPDX-License-Identifier: Apache-2.0
"""The loop that reconciles ComputeDomains after each change, and its metrics.

Watches tell which domains a change concerns, and a few threads reconcile these. At rest, nothing is asked or written.
"""

import logging
import math
import threading
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver.domains.objects import NOT_READY, READY
from dra_driver.kube.api import ApiClient, ApiError, ConflictError
from dra_driver.kube.api.events import EventRecorder
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import Count, contained, nobody
from dra_driver.process.endpoints import PREFIX
from dra_driver.process.worker import Worker

from ..view import ClusterView
from .queue import Queue
from .reconcile import Reconciler
from .settings import DomainSettings
from .view import DomainView
from .writer import NotLeaderError, ObjectWriter

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


class DomainController:
    """Reconciles all ComputeDomains: a part of the work of the leader. `count` counts unexpected errors."""

    def __init__(
        self,
        client: ApiClient,
        settings: DomainSettings,
        recorder: EventRecorder,
        metrics: DomainMetrics,
        count: Count = nobody,
    ) -> None:
        self._client = client
        self._settings = settings
        self._recorder = recorder
        self._metrics = metrics
        self._count = count
        self._term: _Term | None = None

    @property
    def problem(self) -> str | None:
        """Why ComputeDomains are not known at the moment, or None. The problems of single domains are in their
        status.
        """
        term = self._term
        return term.view.problem if term is not None else None

    def start(self, view: ClusterView, stop: threading.Event) -> None:
        """Reconcile after changes, as soon as all watches have listed."""
        timing = self._settings.timing
        queue = Queue(timing.settle, timing.first_retry, timing.longest_retry)
        domains = DomainView(self._client, view, self._settings, queue.add)
        writer = ObjectWriter(self._client, self._metrics.writes, stop)
        reconciler = Reconciler(domains, writer, self._settings, self._recorder, queue)
        self._term = _Term(domains, queue, reconciler, self._metrics, self._count)
        self._term.start(timing.workers)

    def stop(self) -> None:
        """Return when the work has ended."""
        if self._term is not None:
            self._term.stop()
        self._term = None


class _Term:
    """The watches and threads while this process is the leader."""

    def __init__(
        self, view: DomainView, queue: Queue, reconciler: Reconciler, metrics: DomainMetrics, count: Count
    ) -> None:
        self.view = view
        self._queue = queue
        self._reconciler = reconciler
        self._metrics = metrics
        self._count = count
        self._workers: list[Worker] = []
        self._pauses = Backoff(0.02, _LISTING_SECONDS)
        self._told = False
        self._listing = Worker("list compute domains", self._begin_when_listed)

    def start(self, workers: int) -> None:
        self._workers = [Worker(f"domains-{number}", self._reconcile_next) for number in range(workers)]
        self.view.start()
        self._listing.start()

    def stop(self) -> None:
        self._listing.stop(math.inf)
        self._queue.close()
        for worker in self._workers:
            worker.stop(math.inf)
        self.view.stop()

    def _begin_when_listed(self) -> float | None:
        """Begin to reconcile when everything was listed: before that, a domain that exists may be unknown. Returns the
        seconds until the next look, or None.
        """
        if self.view.complete:
            self._queue.add(self.view.known())
            for worker in self._workers:
                worker.start()
            return None
        if not self.view.is_defined and not self._told:
            self._told = True
            log.warning(
                "the API server has no ComputeDomains: install the CustomResourceDefinitions of the Helm chart,"
                " or start this process without --compute-domains; other work goes on"
            )
        return self._pauses.pause()

    def _reconcile_next(self) -> float | None:
        """Reconcile one domain. Returns None after the queue was closed, and otherwise when to go on: at once."""
        uid = self._queue.take()
        if uid is None:
            return None
        succeeded = False
        try:
            with contained("reconcile compute domain", uid, self._count, expected=(ApiError, NotLeaderError)):
                self._reconciler.reconcile(uid)
                succeeded = True
        except NotLeaderError:
            return None
        except ConflictError as error:
            log.debug("ComputeDomain %s: %s", uid, error)
        except ApiError as error:
            log.warning("ComputeDomain %s: %s", uid, error)
        if succeeded:
            self._queue.done(uid)
        else:
            self._queue.failed(uid)
        self._measure()
        return 0.0

    def _measure(self) -> None:
        ready = list(self._reconciler.ready.values())
        self._metrics.info.labels(READY).set(sum(ready))
        self._metrics.info.labels(NOT_READY).set(len(ready) - sum(ready))
        self._metrics.failing.set(self._queue.failing)
