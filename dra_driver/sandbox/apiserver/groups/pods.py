# SPDX-License-Identifier: Apache-2.0
"""Pods: defaults, validation of what matters for scheduling and claims, graceful deletion, columns.

The defaults of pods and pod templates follow pkg/apis/core/v1/defaults.go of k8s.io/kubernetes. Pods also get what the
admission plugins DefaultTolerationSeconds and Priority add.
"""

from collections.abc import Iterator
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..kinds import Column, Context, KindStrategy
from ..objects import Object, clone, fill, pick
from . import columns
from .columns import AGE, NAME, NONE

_FILE_MODE: Final = 420
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_FAILURE_SECONDS: Final = 300

_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_FINISHED: Final = ("Failed", "Succeeded")
_CHANGEABLE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "
    "`spec.activeDeadlineSeconds`, `spec.tolerations`, `spec.terminationGracePeriodSeconds` and `spec.schedulingGates`"
)

Problems = Iterator[FieldError]


def set_spec_defaults(spec: Object) -> None:
    """Set the defaults of the spec of a pod or of a pod template."""
    fill(
        spec,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        schedulerName="default-scheduler",
        terminationGracePeriodSeconds=30,
        securityContext={},
    )
    if spec.get("serviceAccountName") and not spec.get("serviceAccount"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(field, ()):
            _set_container_defaults(container, host_network=spec.get("hostNetwork") is True)
    for volume in spec.get("volumes", ()):
        _set_volume_defaults(volume)


def _admit(spec: Object) -> None:
    """Set the fields that admission adds to a new pod. No client owns these fields."""
    fill(spec, preemptionPolicy="PreemptLowerPriority", priority=0)
    tolerations = spec.setdefault("tolerations", [])
    for key in _TOLERATED:
        if not any(_covers(toleration, key) for toleration in tolerations):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**toleration, "tolerationSeconds": _NODE_FAILURE_SECONDS})


def _covers(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")


def _set_container_defaults(container: Object, *, host_network: bool) -> None:
    fill(
        container,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if _is_latest(container.get("image", "")) else "IfNotPresent",
    )
    for port in container.get("ports", ()):
        fill(port, protocol="TCP")
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort")
    for variable in container.get("env", ()):
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            fill(reference, apiVersion="v1")
    for name in _PROBES:
        probe = container.get(name)
        if probe is not None:
            fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
            if probe.get("httpGet") is not None:
                fill(probe["httpGet"], path="/", scheme="HTTP")


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


def set_defaults(obj: Object, context: Context) -> None:
    """Set the defaults of a pod."""
    spec = obj.setdefault("spec", {})
    set_spec_defaults(spec)
    fill(spec, enableServiceLinks=True)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        resources = container["resources"]
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """Set the status of a new pod. In an update, keep the fields that admission added."""
    if old is not None:
        for field in ("preemptionPolicy", "priority"):
            if field in old["spec"]:
                new["spec"].setdefault(field, old["spec"][field])
    else:
        if not context.release.enabled("GenericWorkload"):
            new["spec"].pop("schedulingGroup", None)
        _admit(new["spec"])
        new["status"] = {"phase": "Pending", "qosClass": _qos_class(new["spec"])}


def _qos_class(spec: Object) -> str:
    """Return Guaranteed, Burstable or BestEffort, by requests and limits of CPU and memory."""
    amounts = [
        (pick(container, "resources", "requests", name), pick(container, "resources", "limits", name))
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ()))
        for name in ("cpu", "memory")
    ]
    if all(request is None and limit is None for request, limit in amounts):
        return "BestEffort"
    return "Guaranteed" if all(limit is not None and request == limit for request, limit in amounts) else "Burstable"


def validate(new: Object, old: Object | None, context: Context) -> Problems:
    """Yield the problems of a pod, or with its change."""
    spec = new["spec"]
    if old is not None:
        if _fixed(spec) != _fixed(old["spec"]):
            yield errors.forbidden("spec", _CHANGEABLE)
        return
    yield from spec_problems(spec, "spec")


def spec_problems(spec: Object, path: str) -> Problems:
    """Yield the problems of a pod's spec or a template's."""
    claims = {claim.get("name", "") for claim in spec.get("resourceClaims", ())}
    volumes = [volume.get("name", "") for volume in spec.get("volumes", ())]
    yield from names.listed_problems(volumes, f"{path}.volumes")
    yield from _claims_problems(spec.get("resourceClaims", ()), f"{path}.resourceClaims")
    for field in ("initContainers", "containers"):
        containers = spec.get(field, ())
        yield from names.listed_problems([container.get("name", "") for container in containers], f"{path}.{field}")
        for index, container in enumerate(containers):
            yield from _container_problems(container, f"{path}.{field}[{index}]", claims, volumes)
    policy = spec.get("restartPolicy")
    if policy not in _RESTART_POLICIES:
        yield errors.not_supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)
    node = spec.get("nodeName")
    if node:
        yield from names.SUBDOMAIN.problems(node, f"{path}.nodeName")


def _container_problems(container: Object, path: str, claims: set[str], volumes: list[str]) -> Problems:
    if not container.get("image"):
        yield errors.required(f"{path}.image")
    for index, mount in enumerate(container.get("volumeMounts", ())):
        if mount.get("name") not in volumes:
            yield errors.not_found(f"{path}.volumeMounts[{index}].name", mount.get("name", ""))
    for index, claim in enumerate(container.get("resources", {}).get("claims", ())):
        if claim.get("name") not in claims:
            yield errors.not_found(f"{path}.resources.claims[{index}].name", claim.get("name", ""))


def _claims_problems(claims: Any, path: str) -> Problems:
    yield from names.listed_problems([claim.get("name", "") for claim in claims], path)
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
    for field in ("containers", "initContainers"):
        for container in result.get(field, ()):
            container.pop("image", None)
    return result


def grace_period(pod: Object, asked: int | None) -> int:
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
        if pick(item, "state", "terminated", "exitCode") != 0:
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
STRATEGY: Final = KindStrategy(
    default=set_defaults,
    prepare=prepare,
    validate=validate,
    generation=("spec",),
    status_keeps_metadata=True,
    returns_deleted=True,
    grace_period=grace_period,
)
