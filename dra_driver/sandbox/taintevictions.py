# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the controller that deletes pods because of device taints with the effect NoExecute.

`scheduler.pods.evictions` decides. The taints come from ResourceSlices of drivers and from DeviceTaintRules. The
conditions in the status of a rule are not written.
"""

import logging
import time
from datetime import datetime

from ..kube.api import ApiClient, Kind
from ..kube.api.events import EventRecorder, ObjectReference
from ..kube.kinds import PODS
from ..kube.resource import AllocatedDevice, DeviceTaint, DeviceTaintRule, ResourceClaim, ResourceSlice
from ..kube.resource.codec import V1, decode
from ..scheduler.pods import Eviction, Pod, PodDecoder, evictions, taints_of_rules
from .loop import CLAIMS, JSON, SLICES, is_alive, with_condition

log = logging.getLogger(__name__)


def taint_rules(client: ApiClient, where: Kind | None) -> list[DeviceTaintRule]:
    """Return the DeviceTaintRules. `where` is None if the server does not have the kind. Raises ApiError."""
    values = client.list(where).items if where is not None else ()
    decoded = (
        decode({**value, "apiVersion": V1.api_version, "kind": "DeviceTaintRule"}, strict=False) for value in values
    )
    return [rule for rule in decoded if isinstance(rule, DeviceTaintRule)]


class TaintEvictions:
    """Each step deletes the pods whose time is over."""

    def __init__(self, client: ApiClient, release: str, rules: Kind | None) -> None:
        """`rules` are the DeviceTaintRules. None if the server does not have the kind."""
        self._client = client
        self._rules = rules
        self._release = release
        self._events = EventRecorder(client, "device-taint-eviction")

    def step(self) -> float | None:
        """Delete the pods whose time is over. Returns the seconds until the next pod has to leave. Raises ApiError."""
        now = time.time()
        remaining: list[float] = []
        for eviction in self._found():
            due = min(_seconds_since_1970(cause.taint, now) + cause.seconds for cause in eviction.causes)
            if due <= now:
                self._evict(eviction.pod)
            else:
                remaining.append(due - now)
        return min(remaining, default=None)

    def close(self) -> None:
        """Write the Events that are still queued."""
        self._events.close()

    def _found(self) -> list[Eviction]:
        taints, rules_found = self._taints(), taint_rules(self._client, self._rules)
        if not taints and not rules_found:
            return []
        rules = taints_of_rules(rules_found)

        def taints_of(result: AllocatedDevice) -> list[DeviceTaint]:
            return [*taints.get((result.driver, result.pool, result.device), ()), *rules(result)]

        decoder = PodDecoder()
        alive = [pod for pod in self._client.list(PODS).items if is_alive(pod) and pod["spec"].get("nodeName")]
        pods = [decoder.decode({**pod, "spec": {**pod["spec"], "volumes": []}}) for pod in alive]
        values = self._client.list(CLAIMS).items
        claims = [
            decode({**value, "apiVersion": V1.api_version, "kind": "ResourceClaim"}, strict=False) for value in values
        ]
        return evictions(
            pods, (claim for claim in claims if isinstance(claim, ResourceClaim)), taints_of, self._release
        )

    def _taints(self) -> dict[tuple[str, str, str], tuple[DeviceTaint, ...]]:
        """Return the taints of published devices by driver, pool and name."""
        values = [
            value
            for value in self._client.list(SLICES).items
            if any(device.get("taints") for device in value["spec"].get("devices") or ())
        ]
        slices = (
            decode({**value, "apiVersion": V1.api_version, "kind": "ResourceSlice"}, strict=False) for value in values
        )
        return {
            (slice_.driver, slice_.pool.name, device.name): device.taints
            for slice_ in slices
            if isinstance(slice_, ResourceSlice)
            for device in slice_.devices
            if device.taints
        }

    def _evict(self, pod: Pod) -> None:
        stored: JSON = self._client.get(PODS, pod.name, pod.namespace)
        self._events.normal(
            ObjectReference("v1", "Pod", pod.name, pod.namespace, pod.uid),
            "DeviceTaintManagerEviction",
            "Marking for deletion",
        )
        status = stored.get("status") or {}
        text = "Device Taint manager: deleting due to NoExecute taint"
        conditions = with_condition(
            status.get("conditions"), "DisruptionTarget", True, "DeletionByDeviceTaintManager", text
        )
        self._client.update(PODS, {**stored, "status": {**status, "conditions": conditions}}, subresource="status")
        self._client.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
        log.info("evicted", extra={"pod": str(pod)})


def _seconds_since_1970(taint: DeviceTaint, now: float) -> float:
    """Return when the taint was added: now if that is not known."""
    return datetime.fromisoformat(taint.time_added).timestamp() if taint.time_added else now
