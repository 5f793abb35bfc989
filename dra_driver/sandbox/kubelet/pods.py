# SPDX-License-Identifier: Apache-2.0
"""The pods of this node. Each pod has a worker thread, like a goroutine of kubelet.

A worker starts its pod (claims, sandbox, containers, status). At the end it follows kubelet's order: stop containers,
unprepare claims, report the final status, delete the object.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dra_driver.kube.api import ApiError
from dra_driver.process.containment import nobody
from dra_driver.process.worker import Worker

from .apiclient import KubernetesCluster
from .health import PluginHealth
from .journal import Journal
from .manager import ClaimManager
from .model import Container, KubeletPod, differs
from .options import Periods
from .podstatus import ContainerState, Running, Terminated, Waiting, allocated_resources, pod_status
from .runtime import ContainerError, ContainerRuntime, RunningContainer
from .state import ClaimCache, ClaimError, cdi_ids

_PREPARE_FAILED = "Failed to prepare dynamic resources: prepare dynamic resources: {}"
_NEVER_RAN = 137
"""The exit code that kubelet reports for containers that never ran."""


class Phase(Enum):
    """The progress of a worker."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that all workers use."""

    cluster: KubernetesCluster
    manager: ClaimManager
    claims: ClaimCache
    health: PluginHealth
    runtime: ContainerRuntime
    journal: Journal
    periods: Periods


class PodWorker:
    """The worker of one pod. `update`, `vanish` and `wake` may be called from any thread."""

    def __init__(self, pod: KubeletPod, services: Services, gone: Callable[[KubeletPod], None]) -> None:
        """`gone(pod)` is called at the end, unless the worker is stopped before."""
        self.phase = Phase.STARTING
        self._services = services
        self._gone = gone
        self._pod = pod
        self._vanished = False
        self._completed = False
        self._waiting: dict[str, Waiting] = {}
        self._reported: Mapping[str, Any] = {}
        self._worker = Worker(f"run pod {pod}", self._round, count=nobody, retry=services.periods.container_retry)

    @property
    def pod(self) -> KubeletPod:
        """The latest version of the pod."""
        return self._pod

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def update(self, pod: KubeletPod) -> None:
        """Use a new version of the pod."""
        before, self._pod = self._pod, pod
        if differs(before, pod):
            self.wake()

    def vanish(self) -> None:
        """Tell the worker that the object was deleted without waiting for this node."""
        if not self._vanished:
            self._vanished = True
            self.wake()

    def wake(self) -> None:
        """Look at the pod and report its status again, because something has changed."""
        self._worker.wake()

    def stop(self, wait: float = 0.0) -> None:
        """Stop the worker, and wait at most so many seconds for its thread. The pod stays."""
        self._worker.stop(wait)

    def _round(self) -> float:
        """Do one step. Returns the seconds until the next one. The worker stops itself after the last step."""
        pod = self._pod
        ends = self._vanished or self._completed or pod.deleting or pod.terminal
        try:
            delay = self._take_down(pod) if ends else self._bring_up(pod)
        except ApiError as error:
            self._services.journal.record("PodSyncFailed", str(pod), str(error))
            return self._services.periods.container_retry
        if delay is None:
            self._worker.stop()
            self._gone(pod)
            return 0.0
        return delay

    def _bring_up(self, pod: KubeletPod) -> float:
        """Do one step to start the pod. Return the seconds until the next check."""
        services = self._services
        if not services.runtime.has_pod(pod.uid):
            self._report(pod, {})
            try:
                services.manager.prepare(pod)
            except ClaimError as error:
                self._event(pod, "FailedPrepareDynamicResources", _PREPARE_FAILED.format(error))
                return services.periods.pod_resync
            services.runtime.create_pod(pod.uid)
        failed = self._start_containers(pod)
        self._report(pod, {})
        if failed:
            return services.periods.container_retry
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING
            services.journal.record("PodRunning", str(pod))
        if pod.run_seconds is None:
            return services.periods.pod_resync
        started = max(container.started_at for container in services.runtime.containers(pod.uid).values())
        left = started + pod.run_seconds - time.time()
        self._completed = left <= 0
        return max(0.0, min(left, services.periods.pod_resync))

    def _start_containers(self, pod: KubeletPod) -> bool:
        """Start missing containers. Return whether this failed. A failed init container delays those after it."""
        services = self._services
        started = services.runtime.containers(pod.uid)
        self._waiting.clear()
        for container in pod.all_containers:
            if container.name in started:
                continue
            try:
                ids = cdi_ids(pod, container, services.claims)
                services.runtime.create_container(pod, container, ids, self.wake)
            except (ContainerError, ClaimError) as error:
                reason = error.reason if isinstance(error, ContainerError) else "CreateContainerConfigError"
                self._waiting[container.name] = Waiting(reason, str(error))
                self._event(pod, "Failed", f"Error: {error}")
                if container in pod.init_containers:
                    break
        return bool(self._waiting)

    def _take_down(self, pod: KubeletPod) -> float | None:
        """Do one step to end the pod. Return the seconds until the next attempt, or None if the object is gone."""
        services = self._services
        vanished = self._vanished
        if self.phase is not Phase.FINISHED:
            services.runtime.stop_pod(pod.uid, pod.grace_period)
            containers = services.runtime.containers(pod.uid)
            try:
                services.manager.unprepare(pod.uid)
            except ClaimError as error:
                message = f"unprepare dynamic resources: {error}"
                services.journal.record("FailedUnprepareDynamicResources", str(pod), message)
                return services.periods.unprepare_retry
            if not vanished and not pod.terminal:
                now = time.time()
                ended: dict[str, ContainerState] = {
                    name: Terminated(_exit_code(container), now, container.id, container.started_at)
                    for name, container in containers.items()
                }
                self._report(pod, {c.name: Terminated(_NEVER_RAN, now) for c in pod.all_containers} | ended)
            services.runtime.remove_pod(pod.uid)
            self.phase = Phase.FINISHED
            services.journal.record("PodFinished", str(pod))
        if vanished:
            return None
        if pod.deleting:
            services.cluster.delete_pod(pod)
            services.journal.record("PodDeleted", str(pod))
        return services.periods.pod_resync

    def _report(self, pod: KubeletPod, ended: Mapping[str, ContainerState]) -> None:
        """Write the pod's status if it has changed."""
        services = self._services
        containers = services.runtime.containers(pod.uid)
        states: dict[str, ContainerState] = dict(ended)
        for container in pod.all_containers:
            if container.name in states:
                continue
            known = containers.get(container.name)
            if known is None:
                states[container.name] = self._waiting.get(container.name, Waiting())
            elif container in pod.init_containers and not container.sidecar:
                states[container.name] = Terminated(0, known.started_at, known.id, known.started_at)
            else:
                states[container.name] = _state(container, known)
        allocated = {
            container.name: allocated_resources(pod, container, services.claims.get, services.health.get)
            for container in pod.containers
        }
        previous = self._reported or pod.raw.get("status") or {}
        status = pod_status(pod, states, previous, time.time(), allocated, services.runtime.address(pod.uid))
        if status != self._reported:
            services.cluster.patch_pod_status(pod, status)
            self._reported = status
            services.journal.record("PodStatusReported", str(pod), status["phase"])

    def _event(self, pod: KubeletPod, reason: str, message: str) -> None:
        if self._worker.is_stopped:
            return  # errors during kubelet's own shutdown are not the pod's
        self._services.journal.record(reason, str(pod), message)
        self._services.cluster.record_event(pod, reason, message)


def _state(container: Container, running: RunningContainer) -> ContainerState:
    """Return the state of a container that was started."""
    if running.supervisor is None:
        return Running(running.id, running.started_at)
    state = running.supervisor.state
    if state.exit_code is None:
        return Running(running.id, state.started_at, state.ready, state.restarts)
    message = f"back-off restarting container {container.name}, which exited with code {state.exit_code}"
    return Waiting("CrashLoopBackOff", message, state.restarts)


def _exit_code(container: RunningContainer) -> int:
    """Return the exit code of a container that has ended. One without a program has ended successfully."""
    return 0 if container.supervisor is None else container.supervisor.state.exit_code or 0


class PodManager:
    """Runs the workers, as the watch on pods demands."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._workers: dict[str, PodWorker] = {}
        self._stopped = False
        self._listed = threading.Event()

    def handle(self, pods: Mapping[str, KubeletPod]) -> None:
        """Process the current pods of the node by UID. Pods that are not among them are gone."""
        for pod in pods.values():
            self._update(pod)
        for worker in self._all():
            if worker.pod.uid not in pods:
                worker.vanish()
        self._listed.set()

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of the pod of that name, or None."""
        found = [w for w in self._all() if (w.pod.namespace, w.pod.name) == (namespace, name)]
        return found[-1] if found else None

    def wake(self, uids: frozenset[str]) -> None:
        """Make the workers of these pods report their status again."""
        for worker in self._all():
            if worker.pod.uid in uids:
                worker.wake()

    def reconcile_claims(self) -> None:
        """Unprepare the claims of pods that no longer exist. Does nothing before all pods are known."""
        if self._listed.is_set():
            active = frozenset(worker.pod.uid for worker in self._all() if worker.phase is not Phase.FINISHED)
            self._services.manager.reconcile(active)

    def stop(self) -> None:
        """Stop all workers and start no more. The pods stay."""
        with self._lock:
            self._stopped = True
        for worker in self._all():
            worker.stop()

    def join(self) -> None:
        """Wait for all workers to end."""
        for worker in self._all():
            worker.stop(math.inf)

    def _all(self) -> tuple[PodWorker, ...]:
        with self._lock:
            return tuple(self._workers.values())

    def _update(self, pod: KubeletPod) -> None:
        with self._lock:
            if self._stopped:
                return
            worker = self._workers.get(pod.uid)
            if worker is None:
                worker = self._workers[pod.uid] = PodWorker(pod, self._services, self._forget)
                worker.start()
                return
        worker.update(pod)

    def _forget(self, pod: KubeletPod) -> None:
        with self._lock:
            del self._workers[pod.uid]
        self._services.journal.record("PodGone", str(pod))
