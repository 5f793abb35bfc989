# SPDX-License-Identifier: Apache-2.0
"""Controllers that act on the present objects, not on events, and run again after any change; and their kinds."""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from ..kubeapi import NODES, ApiClient, ApiError, Kind, Watcher
from ..kubeapi.events import ObjectReference
from ..resource.codec import V1

JSON = dict[str, Any]

PODS = Kind("v1", "pods", namespaced=True)
NAMESPACES = Kind("v1", "namespaces")
CLAIMS = Kind(V1.api_version, "resourceclaims", namespaced=True)
TEMPLATES = Kind(V1.api_version, "resourceclaimtemplates", namespaced=True)
SLICES = Kind(V1.api_version, "resourceslices")
CLASSES = Kind(V1.api_version, "deviceclasses")
DEPLOYMENTS = Kind("apps/v1", "deployments", namespaced=True)
REPLICA_SETS = Kind("apps/v1", "replicasets", namespaced=True)
STATEFUL_SETS = Kind("apps/v1", "statefulsets", namespaced=True)
DAEMON_SETS = Kind("apps/v1", "daemonsets", namespaced=True)
JOBS = Kind("batch/v1", "jobs", namespaced=True)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""What the scheduler puts on a claim before it allocates it."""


def is_finished(pod: JSON) -> bool:
    """Whether all of its containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_alive(pod: JSON) -> bool:
    """Whether it is to run, or runs."""
    return not pod["metadata"].get("deletionTimestamp") and not is_finished(pod)


def claim_names(pod: JSON) -> list[str] | None:
    """The names of the pod's claims, None while one made from a template has none yet."""
    made = {
        one["name"]: one.get("resourceClaimName") for one in pod.get("status", {}).get("resourceClaimStatuses") or []
    }
    names: list[str] = []
    for one in pod["spec"].get("resourceClaims") or []:
        name = one.get("resourceClaimName") or made.get(one["name"])
        if name is None:
            return None
        names.append(name)
    return names


def controlled_by(claim: JSON) -> str:
    """The UID of the pod that a claim was made for; empty when it was made by a user."""
    owners = claim["metadata"].get("ownerReferences") or []
    return next((one["uid"] for one in owners if one["kind"] == "Pod" and one.get("controller")), "")


def without_protection(claim: JSON) -> JSON:
    """The claim without the scheduler's finalizer."""
    meta = claim["metadata"]
    finalizers = [one for one in meta.get("finalizers") or [] if one != FINALIZER]
    return {**claim, "metadata": {**meta, "finalizers": finalizers}}


def reference(pod: JSON) -> ObjectReference:
    """The pod as Events name it."""
    meta = pod["metadata"]
    return ObjectReference("v1", "Pod", meta["name"], meta["namespace"], meta["uid"])


log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_WATCHED = (
    *(PODS, CLAIMS, TEMPLATES, SLICES, CLASSES, NODES),
    *(DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, JOBS),
)


class Controller(Protocol):
    """Something that puts right whatever it finds wrong."""

    def step(self) -> None:
        """Do once whatever is missing. Raises ApiError."""

    def close(self) -> None:
        """There are no more steps."""


class ControlLoop:
    """Steps the controllers, in order, on a thread of its own, after every change of what they look at."""

    def __init__(self, client: ApiClient, controllers: Sequence[Controller]) -> None:
        self._controllers = controllers
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._watchers = [
            Watcher(client, kind, on_list=lambda _: self._changed.set(), on_event=lambda *_: self._changed.set())
            for kind in _WATCHED
        ]
        self._thread = threading.Thread(target=self._run, name="control-loop", daemon=True)

    def start(self) -> None:
        """Begin."""
        for watcher in self._watchers:
            watcher.start()
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        for watcher in self._watchers:
            watcher.stop()
        self._stopped.set()
        self._changed.set()
        self._thread.join(10)
        for controller in self._controllers:
            controller.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._changed.wait()
            self._changed.clear()
            for controller in self._controllers:
                try:
                    controller.step()
                except ApiError as error:
                    log.debug("%s looks again: %s", type(controller).__name__, error)  # somebody wrote first, mostly
                    self._stopped.wait(_RETRY_SECONDS)
                    self._changed.set()
