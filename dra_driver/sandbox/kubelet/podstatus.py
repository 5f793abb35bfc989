# SPDX-License-Identifier: Apache-2.0
"""The status of a pod: phase, conditions, containers, and the health of their devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .model import EXTENDED, Container, KubeletPod
from .state import ClaimInfo, device_serves
from .wire import DeviceHealth

HOST_IP = "127.0.0.1"

ClaimOf = Callable[[str, str], ClaimInfo | None]
"""A function from namespace and name to the claim in the checkpoint, or None."""
HealthOf = Callable[[str, str, str], DeviceHealth]
"""A function from driver, pool and device to the health of the device."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A container that is not created yet, or that was started before (`restarts`), and the reason."""

    reason: str = "ContainerCreating"
    message: str = ""
    restarts: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A started container. Times are seconds since the epoch."""

    id: str
    started_at: float
    ready: bool = True
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Terminated:
    """An ended container. If it never started, it has no id."""

    exit_code: int
    finished_at: float
    id: str = ""
    started_at: float | None = None


ContainerState = Waiting | Running | Terminated


def timestamp(seconds: float) -> str:
    """Return the time in the API's form: UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def phase_of(pod: KubeletPod, states: Mapping[str, ContainerState]) -> str:
    """Return the phase: Pending, Running, Succeeded or Failed."""
    main = [states[container.name] for container in pod.containers]
    if all(isinstance(state, Terminated) for state in main):
        return "Succeeded" if all(isinstance(s, Terminated) and s.exit_code == 0 for s in main) else "Failed"
    new = any(isinstance(state, Waiting) and state.restarts is None for state in states.values())
    return "Pending" if new else "Running"


def pod_status(
    pod: KubeletPod,
    states: Mapping[str, ContainerState],
    previous: Mapping[str, Any],
    now: float,
    allocated: Mapping[str, Sequence[Mapping[str, Any]]],
    address: str = "",
) -> Mapping[str, Any]:
    """Return the status of the pod.

    `states` has all containers, `previous` is the current status, `allocated` has the health of devices, and `address`
    is the pod's.
    """
    status: dict[str, Any] = {
        "phase": phase_of(pod, states),
        "conditions": _conditions(pod, states, previous, now),
        "hostIP": HOST_IP,
        "hostIPs": [{"ip": HOST_IP}],
        "startTime": previous.get("startTime") or timestamp(now),
        "containerStatuses": [_container(c, states[c.name], allocated.get(c.name, ())) for c in pod.containers],
    }
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    if pod.init_containers:
        status["initContainerStatuses"] = [_container(c, states[c.name], ()) for c in pod.init_containers]
    return status


def _conditions(
    pod: KubeletPod, states: Mapping[str, ContainerState], previous: Mapping[str, Any], now: float
) -> list[Mapping[str, Any]]:
    uninitialized = [c.name for c in pod.init_containers if not _ready(c, states[c.name], init=True)]
    unready = [c.name for c in pod.containers if not _ready(c, states[c.name], init=False)]
    done = phase_of(pod, states) in ("Succeeded", "Failed")
    not_ready = {
        "status": "False",
        "reason": "PodCompleted" if done else "ContainersNotReady",
        "message": "" if done else f"containers with unready status: [{' '.join(unready)}]",
    }
    ready = not_ready if unready else {"status": "True"}
    conditions: dict[str, Mapping[str, str]] = {
        "Initialized": {
            "status": "False",
            "reason": "ContainersNotInitialized",
            "message": f"containers with incomplete status: [{' '.join(uninitialized)}]",
        }
        if uninitialized and not done
        else {"status": "True"},
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": {"status": "True"},
    }
    before = {condition["type"]: condition for condition in previous.get("conditions") or ()}
    kept = [condition for kind, condition in before.items() if kind not in conditions]
    return kept + [_condition(kind, want, before.get(kind), now) for kind, want in conditions.items()]


def _condition(kind: str, want: Mapping[str, str], before: Mapping[str, Any] | None, now: float) -> Mapping[str, Any]:
    same = before is not None and before.get("status") == want["status"]
    since = before.get("lastTransitionTime") if same and before else None
    return {"type": kind, **{k: v for k, v in want.items() if v}, "lastTransitionTime": since or timestamp(now)}


def _ready(container: Container, state: ContainerState, *, init: bool) -> bool:
    if init and not container.sidecar:
        return isinstance(state, Terminated) and state.exit_code == 0
    return isinstance(state, Running) and state.ready


def _container(
    container: Container, state: ContainerState, allocated: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    status: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": isinstance(state, Running) and state.ready,
        "started": isinstance(state, Running),
        "restartCount": (state.restarts or 0) if isinstance(state, Running | Waiting) else 0,
    }
    match state:
        case Waiting(reason, message, _):
            status["state"] = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        case Running(id, started_at, _, _):
            status["containerID"] = f"sandbox://{id}"
            status["state"] = {"running": {"startedAt": timestamp(started_at)}}
        case Terminated(exit_code, finished_at, id, started_at):
            if id:
                status["containerID"] = f"sandbox://{id}"
            reason = "Completed" if exit_code == 0 else "Error"
            times = {"startedAt": timestamp(started_at or finished_at), "finishedAt": timestamp(finished_at)}
            status["state"] = {"terminated": {"exitCode": exit_code, "reason": reason} | times}
    if allocated:
        status["allocatedResourcesStatus"] = list(allocated)
    return status


def allocated_resources(
    pod: KubeletPod, container: Container, claim_of: ClaimOf, health_of: HealthOf
) -> list[Mapping[str, Any]]:
    """Return allocatedResourcesStatus of a container: the health of the devices of each of its claims."""
    names = {entry.name: entry.claim for entry in pod.claims if entry.name != EXTENDED}
    result: list[Mapping[str, Any]] = []
    for use in container.claims:
        info = claim_of(pod.namespace, names.get(use.name, ""))
        base = use.request.partition("/")[0]
        found: dict[str, Mapping[str, Any]] = {}
        for driver, devices in info.devices.items() if info else ():
            for device in devices:
                if not device_serves(device, base):
                    continue
                health = health_of(driver, device.pool, device.device)
                id = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
                entry = {"resourceID": id, "health": health.health.value}
                found.setdefault(id, entry | ({"message": health.message} if health.message else {}))
        if found:
            full = f"claim:{use.name}/{use.request}" if use.request else f"claim:{use.name}"
            result.append({"name": full, "resources": list(found.values())})
    return result
