# SPDX-License-Identifier: Apache-2.0
"""Pods: defaults, validation of what matters for scheduling and claims, graceful deletion, columns.

The defaults of pods and pod templates follow pkg/apis/core/v1/defaults.go of k8s.io/kubernetes. Pods also get what the
admission plugins DefaultTolerationSeconds and Priority add.
"""

from collections.abc import Iterator
from typing import Any, Final

from dra_driver.resource.quantity import Quantity

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..kinds import Column, Context, Strategy
from ..objects import Object, clone, pick
from . import columns
from .columns import AGE, NAME, NONE

_FILE_MODE: Final = 420
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_FAILURE_SECONDS: Final = 300


def set_spec_defaults(spec: Object) -> None:
    """Set the defaults of the spec of a pod or of a pod template."""
    for field, value in (
        ("restartPolicy", "Always"),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
    ):
        if not spec.get(field):
            spec[field] = value
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    if spec.get("serviceAccountName") and not spec.get("serviceAccount"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(field, ()):
            _set_container_defaults(container, host_network=spec.get("hostNetwork") is True)
    for volume in spec.get("volumes", ()):
        _set_volume_defaults(volume)


def set_pod_defaults(spec: Object) -> None:
    """Set the defaults that only pods have, after `set_spec_defaults`."""
    spec.setdefault("enableServiceLinks", True)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        resources = container.get("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def admit_pod(spec: Object) -> None:
    """Set the fields that admission adds to a new pod. No client owns these fields."""
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    tolerations = spec.setdefault("tolerations", [])
    for key in _TOLERATED:
        if not any(_covers(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _NODE_FAILURE_SECONDS,
                }
            )


def _covers(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")


def _set_container_defaults(container: Object, *, host_network: bool) -> None:
    container.setdefault("resources", {})
    if not container.get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not container.get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = "Always" if _is_latest(container.get("image", "")) else "IfNotPresent"
    for port in container.get("ports", ()):
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")
    for variable in container.get("env", ()):
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None and not reference.get("apiVersion"):
            reference["apiVersion"] = "v1"
    for name in _PROBES:
        probe = container.get(name)
        if probe is not None:
            for field, value in _PROBE_DEFAULTS.items():
                if not probe.get(field):
                    probe[field] = value
            _set_http_defaults(probe)
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _set_http_defaults(hook)


def _set_http_defaults(handler: Object) -> None:
    request: Any = handler.get("httpGet")
    if request is not None:
        request["path"] = request.get("path") or "/"
        request["scheme"] = request.get("scheme") or "HTTP"
    grpc = handler.get("grpc")
    if grpc is not None:
        grpc.setdefault("service", "")


def _is_latest(image: str) -> bool:
    last = image.rpartition("/")[2]
    if "@" in last:
        return False
    _, colon, tag = last.partition(":")
    return not colon or tag == "latest"


def _set_volume_defaults(volume: Object) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "downwardAPI", "projected"):
        if volume.get(source) is not None:
            volume[source].setdefault("defaultMode", _FILE_MODE)
    if volume.get("hostPath") is not None:
        volume["hostPath"].setdefault("type", "")


_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_FINISHED: Final = ("Failed", "Succeeded")
_CHANGEABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)

Problems = Iterator[FieldError]


def set_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a pod."""
    spec = obj.setdefault("spec", {})
    set_spec_defaults(spec)
    set_pod_defaults(spec)


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """Set the status of a new pod. In an update, keep the fields that admission added."""
    if old is not None:
        for field in ("preemptionPolicy", "priority"):
            if field in old["spec"]:
                new["spec"].setdefault(field, old["spec"][field])
    else:
        admit_pod(new["spec"])
        new["status"] = {"phase": "Pending", "qosClass": qos_class(new["spec"])}


def qos_class(spec: Object) -> str:
    """Return Guaranteed, Burstable or BestEffort, by requests and limits of CPU and memory."""
    guaranteed, best_effort = True, True
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        resources = container.get("resources", {})
        for name in ("cpu", "memory"):
            request, limit = (_amount(resources.get(side, {}).get(name)) for side in ("requests", "limits"))
            best_effort = best_effort and not request and not limit
            guaranteed = guaranteed and limit > 0 and request == limit
    if best_effort:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amount(text: str | None) -> int:
    return Quantity.parse(text).nanos if text else 0


def validate(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a pod, or with its change."""
    spec = new["spec"]
    if old is not None:
        if _fixed(spec) != _fixed(old["spec"]) or not _only_added(spec, old["spec"]):
            yield errors.forbidden("spec", _CHANGEABLE)
        return
    yield from spec_problems(spec, "spec")


def spec_problems(spec: Object, path: str) -> Problems:
    """Yield the problems of a pod's spec or a template's."""
    claims = {claim.get("name", "") for claim in spec.get("resourceClaims", ())}
    volumes = [volume.get("name", "") for volume in spec.get("volumes", ())]
    yield from _names_problems(volumes, f"{path}.volumes")
    yield from _claims_problems(spec.get("resourceClaims", ()), f"{path}.resourceClaims")
    seen: list[str] = []
    if not spec.get("containers"):
        yield errors.required(f"{path}.containers")
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, ())):
            here = f"{path}.{field}[{index}]"
            yield from _container_problems(container, here, seen, claims, volumes)
    policy = spec.get("restartPolicy")
    if policy not in _RESTART_POLICIES:
        yield errors.not_supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)
    node = spec.get("nodeName")
    if node:
        yield from names.SUBDOMAIN.problems(node, f"{path}.nodeName")


def _names_problems(found: list[str], path: str) -> Problems:
    for index, name in enumerate(found):
        if not name:
            yield errors.required(f"{path}[{index}].name")
            continue
        yield from names.LABEL.problems(name, f"{path}[{index}].name")
        if name in found[:index]:
            yield errors.duplicate(f"{path}[{index}].name", name)


def _container_problems(
    container: Object, path: str, seen: list[str], claims: set[str], volumes: list[str]
) -> Problems:
    name = container.get("name", "")
    if not name:
        yield errors.required(f"{path}.name")
    else:
        yield from names.LABEL.problems(name, f"{path}.name")
        if name in seen:
            yield errors.duplicate(f"{path}.name", name)
    seen.append(name)
    if not container.get("image"):
        yield errors.required(f"{path}.image")
    for index, mount in enumerate(container.get("volumeMounts", ())):
        if mount.get("name") not in volumes:
            yield errors.not_found(f"{path}.volumeMounts[{index}].name", mount.get("name", ""))
    used: set[tuple[str, str]] = set()
    for index, claim in enumerate(container.get("resources", {}).get("claims", ())):
        here = f"{path}.resources.claims[{index}]"
        reference = (claim.get("name", ""), claim.get("request", ""))
        if reference in used:
            yield errors.duplicate(here, "/".join(filter(None, reference)))
        used.add(reference)
        if reference[0] not in claims:
            yield errors.not_found(f"{here}.name", reference[0])


def _claims_problems(claims: Any, path: str) -> Problems:
    yield from _names_problems([claim.get("name", "") for claim in claims], path)
    for index, claim in enumerate(claims):
        here = f"{path}[{index}]"
        sources = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(field)]
        if len(sources) > 1:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            yield errors.invalid(here, claim, text)
        elif not sources:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield errors.invalid(here, claim, text)
        for field in sources:
            yield from names.SUBDOMAIN.problems(claim[field], f"{here}.{field}")


def _fixed(spec: Object) -> Object:
    """Return the parts of a spec that an update cannot change."""
    result: Object = clone(spec)
    for field in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"):
        result.pop(field, None)
    if spec.get("schedulingGates"):
        result.pop("nodeSelector", None)
        result.pop("affinity", None)
    for field in ("containers", "initContainers"):
        for container in result.get(field, ()):
            container.pop("image", None)
    return result


def _only_added(spec: Object, old: Object) -> bool:
    kept = [toleration.get("key") for toleration in spec.get("tolerations", ())]
    gates = old.get("schedulingGates", ())
    return all(toleration.get("key") in kept for toleration in old.get("tolerations", ())) and all(
        gate in gates for gate in spec.get("schedulingGates", ())
    )


def grace_period(pod: Object, asked: int | None) -> int | None:
    """Return the grace period of a pod: 0 if it has no node or has finished."""
    if not pod["spec"].get("nodeName") or pick(pod, "status", "phase") in _FINISHED:
        return 0
    return int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked


def _ready(pod: Object) -> str:
    statuses = pick(pod, "status", "containerStatuses") or []
    restartable = [item for item in pod["spec"].get("initContainers", ()) if item.get("restartPolicy") == "Always"]
    total = len(pod["spec"].get("containers", ())) + len(restartable)
    return f"{sum(1 for item in statuses if item.get('ready'))}/{total}"


def _status(pod: Object) -> str:
    """Return the text of the column STATUS."""
    status = pod.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or "Unknown"
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    for index, item in enumerate(status.get("initContainerStatuses", ())):
        state = item.get("state", {})
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if terminated is not None:
            return f"Init:{terminated.get('reason') or 'Error'}"
        if waiting is not None and waiting.get("reason", "PodInitializing") != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(pod['spec'].get('initContainers', ()))}"
    for item in reversed(status.get("containerStatuses", ())):
        state = item.get("state", {})
        waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated:
            reason = terminated.get("reason") or f"ExitCode:{terminated.get('exitCode', 0)}"
    return "Terminating" if pod["metadata"].get("deletionTimestamp") else reason


def _restarts(pod: Object) -> str:
    return str(sum(item.get("restartCount", 0) for item in pick(pod, "status", "containerStatuses") or ()))


COLUMNS: Final[tuple[Column, ...]] = (
    NAME,
    columns.made("Ready", _ready),
    columns.made("Status", _status),
    columns.made("Restarts", _restarts),
    AGE,
    columns.text("IP", "status", "podIP", wide=True, absent=NONE),
    columns.text("Node", "spec", "nodeName", wide=True, absent=NONE),
    columns.text("Nominated Node", "status", "nominatedNodeName", wide=True, absent=NONE),
    columns.made("Readiness Gates", lambda pod: NONE, wide=True),
)
STRATEGY: Final = Strategy(
    default=set_defaults,
    prepare=prepare,
    validate=validate,
    generation=("spec",),
    status_keeps_metadata=True,
    returns_deleted=True,
    grace_period=grace_period,
)
