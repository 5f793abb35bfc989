# SPDX-License-Identifier: Apache-2.0
"""The loop that runs the stand-in controllers after every change, and what they share: kinds, a client, helpers.

The controllers compare the current objects with what they should be. They do not process events.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from .. import __version__
from ..kube.api import ApiClient, ApiError, Connection, Kind, Watcher, load_credentials
from ..kube.api.events import ObjectReference
from ..kube.kinds import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_QUOTAS,
    STATEFUL_SETS,
    claims_of,
    classes_of,
    slices_of,
    templates_of,
)
from ..kube.resource.codec import V1
from ..process.backoff import Backoff
from ..process.worker import Worker
from .kubelet.podstatus import timestamp
from .watchedlists import WatchedLists

JSON = dict[str, Any]

CLAIMS = claims_of(V1)
TEMPLATES = templates_of(V1)
SLICES = slices_of(V1)
CLASSES = classes_of(V1)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""The finalizer that the scheduler adds to a claim before it allocates the claim."""

log = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.02
"""How long a round waits after a change. A step of a controller often causes several changes."""
_FIRST_RETRY = 0.5
_LONGEST_RETRY = 5.0
_STOP_SECONDS = 10.0
_WATCHED = (
    *(PODS, CLAIMS, TEMPLATES, SLICES, CLASSES, NODES, NAMESPACES),
    *(DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, JOBS, RESOURCE_QUOTAS),
)


def is_finished(pod: JSON) -> bool:
    """Return whether all containers of the pod have ended."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_alive(pod: JSON) -> bool:
    """Return whether the pod runs or will run."""
    return not pod["metadata"].get("deletionTimestamp") and not is_finished(pod)


def claim_names(pod: JSON) -> list[str] | None:
    """Return the names of the pod's claims, or None if a claim of a template does not exist yet."""
    made = {
        status["name"]: status.get("resourceClaimName")
        for status in pod.get("status", {}).get("resourceClaimStatuses") or []
    }
    names: list[str] = []
    for resource_claim in pod["spec"].get("resourceClaims") or []:
        name = resource_claim.get("resourceClaimName") or made.get(resource_claim["name"])
        if name is None:
            return None
        names.append(name)
    return names


def controlled_by(claim: JSON) -> str:
    """Return the UID of the pod or PodGroup that a claim was created for. Empty: a user created it."""
    owners = claim["metadata"].get("ownerReferences") or []
    return next(
        (owner["uid"] for owner in owners if owner["kind"] in ("Pod", "PodGroup") and owner.get("controller")), ""
    )


def without_protection(claim: JSON) -> JSON:
    """Return the claim without the scheduler's finalizer."""
    meta = claim["metadata"]
    finalizers = [finalizer for finalizer in meta.get("finalizers") or [] if finalizer != FINALIZER]
    return {**claim, "metadata": {**meta, "finalizers": finalizers}}


def with_condition(conditions: Iterable[JSON] | None, kind: str, status: bool, reason: str, message: str) -> list[JSON]:
    """Return the conditions with one of them set. The transition time changes only with the status."""
    others = [condition for condition in conditions or () if condition["type"] != kind]
    before: JSON = next((condition for condition in conditions or () if condition["type"] == kind), {})
    said = {"type": kind, "status": str(status), "reason": reason, "message": message}
    if said.items() <= before.items():
        return [*others, before]
    now = timestamp(time.time())
    since = before.get("lastTransitionTime", now) if before.get("status") == said["status"] else now
    return [*others, {**said, "lastTransitionTime": since}]


def reference(pod: JSON) -> ObjectReference:
    """Return the reference to the pod in Events."""
    meta = pod["metadata"]
    return ObjectReference("v1", "Pod", meta["name"], meta["namespace"], meta["uid"])


@contextmanager
def connected(kubeconfig: Path) -> Iterator[ApiClient]:
    """Give a client of the API server that the kubeconfig names. Raises ConnectionConfigError."""
    with connection(kubeconfig) as opened:
        yield ApiClient(opened)


def connection(kubeconfig: Path) -> Connection:
    """Return a connection to the API server that the kubeconfig names. Raises ConnectionConfigError."""
    return Connection(load_credentials(str(kubeconfig)), f"dra-sandbox/{__version__}")


class Controller(Protocol):
    """A controller."""

    def step(self) -> float | None:
        """Do what is missing. Returns the seconds until a step is due without a change, or None. Raises ApiError."""

    def close(self) -> None:
        """Release resources. There are no more steps."""


class ControlLoop:
    """Runs the controllers in order, on its own thread, after every change of the objects that they read."""

    def __init__(
        self,
        client: ApiClient,
        controllers: Sequence[Controller],
        more: Iterable[Kind] = (),
        lists: WatchedLists | None = None,
    ) -> None:
        """`more` are kinds that only some releases serve. If the controllers read through `lists`, the loop tells
        `lists` which kinds have changed.
        """
        self._controllers = controllers
        self._backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY)
        self._worker = Worker("run controllers", self._round)
        self._lists = lists
        self._watchers = [self._watcher(client, kind) for kind in (*_WATCHED, *more)]

    def _watcher(self, client: ApiClient, kind: Kind) -> Watcher:
        def listed(_: object) -> None:
            if self._lists is not None:
                self._lists.forget(kind)
            self._worker.wake(_SETTLE_SECONDS)

        def changed(event: str, value: JSON) -> None:
            if self._lists is not None:
                self._lists.change(kind, event, value)
            self._worker.wake(_SETTLE_SECONDS)

        watcher = Watcher(client, kind, on_list=listed, on_event=changed)
        if self._lists is not None:
            self._lists.add(kind, lambda: watcher.problem)
        return watcher

    def start(self) -> None:
        """Start the loop."""
        for watcher in self._watchers:
            watcher.start()
        self._worker.start()

    def stop(self) -> None:
        """Stop the loop and wait for its thread."""
        for watcher in self._watchers:
            watcher.stop()
        self._worker.stop(_STOP_SECONDS)
        for controller in self._controllers:
            controller.close()

    def _round(self) -> float | None:
        """Let each controller do one step. Returns the seconds until the next round, or None."""
        pauses: list[float] = []
        failed = False
        for controller in self._controllers:
            try:
                pause = controller.step()
            except ApiError as error:  # mostly a conflict with another writer
                log.debug("%s tries again: %s", type(controller).__name__, error)
                failed = True
            else:
                pauses += [] if pause is None else [pause]
        if failed:
            pauses.append(self._backoff.pause())
        else:
            self._backoff.reset()
        return min(pauses, default=None)
