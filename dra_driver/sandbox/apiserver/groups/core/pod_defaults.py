# SPDX-License-Identifier: Apache-2.0
"""What the server fills into a pod's spec, and into the templates of workloads.

Follows pkg/apis/core/v1/defaults.go of k8s.io/kubernetes, and the admission plugins
DefaultTolerationSeconds and Priority for pods themselves.
"""

from typing import Any, Final

from ...objects import Object

_FILE_MODE: Final = 420
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NODE_FAILURE_SECONDS: Final = 300


def set_spec_defaults(spec: Object) -> None:
    """Of a pod's spec or a template's."""
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
    """Of a pod alone, after `set_spec_defaults`."""
    spec.setdefault("enableServiceLinks", True)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        resources = container.get("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def admit_pod(spec: Object) -> None:
    """What admission adds to a new pod; no client owns these fields."""
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
    for source in (volume.get("projected") or {}).get("sources", ()):
        token = source.get("serviceAccountToken")
        if token is not None:
            token.setdefault("expirationSeconds", 3600)
        for item in (source.get("downwardAPI") or {}).get("items", ()):
            _set_reference_version(item)
    for item in (volume.get("downwardAPI") or {}).get("items", ()):
        _set_reference_version(item)


def _set_reference_version(item: Object) -> None:
    if item.get("fieldRef") is not None and not item["fieldRef"].get("apiVersion"):
        item["fieldRef"]["apiVersion"] = "v1"
