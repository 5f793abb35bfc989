# SPDX-License-Identifier: Apache-2.0
"""The loop that deletes slices of nodes that no longer exist and reports claims on these nodes, and its metrics.

The loop makes a plan after every change of the cluster's view, and writes little. A watch may lag, so nothing is
deleted only because of a watch: the slice and the node are read once more, and the delete names the slice's UID and
resource version. Therefore a slice that its node has just adopted stays, and two processes that both believe to be the
leader do no harm.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from dra_driver.kube.api import ApiClient, ApiError, ConflictError, NotFoundError
from dra_driver.kube.api.events import EventRecorder, ObjectReference
from dra_driver.kube.kinds import NODES, slices_of
from dra_driver.process.backoff import Backoff
from dra_driver.process.endpoints import PREFIX
from dra_driver.process.worker import Worker

from .facts import ClaimFacts, SliceFacts, slice_facts
from .leftovers import REASONS, Leftover, advice, plan_cleanup
from .view import ClusterView

log = logging.getLogger(__name__)

EVENT_REASON = "NodeGone"


class Metrics:
    """The metrics of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace=PREFIX, registry=registry)
        counter = partial(Counter, namespace=PREFIX, registry=registry)
        self.leader = gauge("cluster_leader", "1 in the process that is the leader, 0 in a standby process.")
        self.removed = counter("leftover_slices_removed", "ResourceSlices that were deleted, by reason.", ["reason"])
        self.leftovers = gauge(
            "leftover_objects",
            "ResourceSlices and claims of nodes that no longer exist, including those in their grace period.",
        )
        self.strays = gauge(
            "claims_on_missing_nodes",
            "Claims with allocated devices of a node that no longer exists, after the grace period.",
        )
        for reason in REASONS:
            self.removed.labels(reason)


@dataclass(frozen=True, slots=True)
class CaretakerTiming:
    """How long the caretaker waits, in seconds."""

    grace: float = 60.0  # for Kubernetes' own controllers to delete what a node left behind
    settle: float = 1.0  # after a change, because more changes may follow
    first_retry: float = 1.0
    longest_retry: float = 60.0


class Caretaker:
    """Deletes leftover slices, and reports claims with devices of missing nodes: a part of the work of the leader."""

    def __init__(
        self, client: ApiClient, recorder: EventRecorder, metrics: Metrics, timing: CaretakerTiming | None = None
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._metrics = metrics
        self._timing = timing or CaretakerTiming()
        self._worker: Worker | None = None
        self._trouble: str | None = None

    @property
    def problem(self) -> str | None:
        """Why leftovers cannot be removed at the moment, or None."""
        return self._trouble

    def start(self, view: ClusterView, stop: threading.Event) -> None:
        """Tidy after changes of the view, and when something is due."""
        timing = self._timing
        backoff = Backoff(timing.first_retry, timing.longest_retry)
        term = _Term(self._client, view, self._recorder, self._metrics, timing)

        def tidy() -> float | None:
            try:
                pause = term.tidy(stop)
            except ApiError as error:
                return self._after(error, backoff)
            self._trouble = None
            backoff.reset()
            return pause

        worker = self._worker = Worker("remove leftovers", tidy)
        view.subscribe(lambda _: worker.wake(timing.settle))
        worker.start()

    def stop(self) -> None:
        """Return when the work has ended."""
        if self._worker is not None:
            self._worker.stop(math.inf)
        self._trouble = None

    def _after(self, error: ApiError, backoff: Backoff) -> float:
        """Record a failure, and return the seconds until the next attempt."""
        pause = backoff.pause()
        self._trouble = str(error)
        log.warning("leftovers cannot be removed yet: %s", error, extra={"retry_seconds": round(pause, 1)})
        return pause


class _Term:
    """The state that is kept between plans, while this process is the leader."""

    def __init__(
        self,
        client: ApiClient,
        view: ClusterView,
        recorder: EventRecorder,
        metrics: Metrics,
        timing: CaretakerTiming,
    ) -> None:
        self._client = client
        self._slices = slices_of(view.dialect)
        self._view = view
        self._recorder = recorder
        self._metrics = metrics
        self._timing = timing
        self._since: dict[str, float] = {}
        self._told: set[str] = set()  # UIDs of reported claims
        self._node_of: dict[str, str | None] = {}  # by UID of slices without an owner; a slice's node never changes

    def tidy(self, stop: threading.Event) -> float | None:
        """Carry out what is due. Returns the seconds until the next action, or None if none is known. Raises ApiError
        after everything else was tried.
        """
        if not self._view.complete:
            return None
        nodes = {node.name: node.uid for node in self._view.nodes.all()}
        now = time.monotonic()
        grace = self._timing.grace
        plan = plan_cleanup(self._with_nodes(), self._view.claims.all(), nodes, self._since, now, grace)
        self._since = dict(plan.since)
        self._metrics.leftovers.set(len(plan.since))
        self._metrics.strays.set(len(plan.strays))
        for claim in plan.strays:
            self._tell(claim, advice(claim, nodes))
        self._told &= {claim.uid for claim in plan.strays}
        pauses = [] if plan.next_at is None else [max(plan.next_at - now, 0.0)]
        problems = []
        for leftover in plan.deletes:
            if stop.is_set():
                break
            try:
                if not self._remove(leftover):
                    pauses.append(self._timing.longest_retry)
            except ApiError as error:
                problems.append(error)
        if problems:
            raise problems[0]
        return min(pauses, default=None)

    def _with_nodes(self) -> list[SliceFacts]:
        """The slices. Those without an owner get the node in their spec."""
        slices = self._view.slices
        ownerless = {slice_.uid: slice_ for slice_ in slices if slice_.node is None}
        self._node_of = {uid: node for uid, node in self._node_of.items() if uid in ownerless}
        for uid, slice_ in ownerless.items():
            if uid not in self._node_of:
                self._node_of[uid] = self._node_in_spec(slice_)
        return [
            replace(slice_, node=self._node_of[slice_.uid]) if slice_.uid in ownerless else slice_ for slice_ in slices
        ]

    def _node_in_spec(self, slice_: SliceFacts) -> str | None:
        try:
            value = self._client.get(self._slices, slice_.name)
        except NotFoundError:
            return None
        return value["spec"].get("nodeName") or None

    def _remove(self, leftover: Leftover) -> bool:
        """Delete the slice. False if it is not a leftover, or has just changed."""
        slice_ = leftover.slice
        if not self._still_left(leftover):
            return False
        try:
            self._client.delete(self._slices, slice_.name, uid=slice_.uid, resource_version=slice_.resource_version)
        except NotFoundError:
            return True
        except ConflictError as error:
            log.info("%s: not removed: %s", leftover, error)
            return False
        self._metrics.removed.labels(leftover.reason).inc()
        log.info("%s: removed", leftover, extra={"slice": slice_.name, "node": slice_.node})
        return True

    def _still_left(self, leftover: Leftover) -> bool:
        """Whether slice and node are still as in the plan, according to the API server."""
        slice_ = leftover.slice
        try:
            value = self._client.get(self._slices, slice_.name)
        except NotFoundError:
            return False
        found = slice_facts(value)
        if (found.resource_version, value["spec"].get("nodeName")) != (slice_.resource_version, slice_.node):
            return False
        try:
            node = self._client.get(NODES, slice_.node or "")
        except NotFoundError:
            return True
        return found.owner_uid is not None and found.owner_uid != node["metadata"]["uid"]

    def _tell(self, claim: ClaimFacts, text: str) -> None:
        if claim.uid in self._told:
            return
        self._told.add(claim.uid)
        log.warning("claim %s/%s: %s", claim.namespace, claim.name, text)
        about = ObjectReference(
            self._view.claims.kind.api_version, "ResourceClaim", claim.name, claim.namespace, claim.uid
        )
        self._recorder.warning(about, EVENT_REASON, text)
