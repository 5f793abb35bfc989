# SPDX-License-Identifier: Apache-2.0
"""Whether pods were made from a template: a controller replaces its pods if any field of the template changes.

The template that a pod was made from is in the ReplicaSet or the ControllerRevision that the pod names. There, it has
the defaults of the API server (`pkg/apis/core/v1/defaults.go` of Kubernetes 1.36), which the template of a manifest
lacks: both are compared without the defaults. Without such an object, the images of the pod are compared.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..errors import QuantityError
from ..kube.kinds import CONTROLLER_REVISIONS, REPLICA_SETS
from ..kube.resource import Quantity
from ..scheduler.pods import Pod
from .documents import within

JSON = Mapping[str, Any]

Templates = Callable[[str, str, str], JSON | None]
"""The pod template (JSON) of a ReplicaSet or ControllerRevision by kind, namespace and name; None if unknown."""

REVISIONS: Final = {
    "ReplicaSet": REPLICA_SETS,
    "ControllerRevision": CONTROLLER_REVISIONS,
}
"""The kinds whose objects have the template of pods."""

HASH: Final = "pod-template-hash"
_REVISION_HASH: Final = "controller-revision-hash"
_RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
"""The annotation that `kubectl rollout restart` adds to a template. Applying a manifest keeps it."""

_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "dnsPolicy": ("ClusterFirst",),
    "schedulerName": ("default-scheduler",),
    "enableServiceLinks": (True,),
    "terminationGracePeriodSeconds": (30,),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "protocol": ("TCP",),
    "scheme": ("HTTP",),
    "path": ("/",),
    "apiVersion": ("v1",),
    "initialDelaySeconds": (0,),
    "timeoutSeconds": (0, 1),
    "periodSeconds": (0, 10),
    "successThreshold": (0, 1),
    "failureThreshold": (0, 3),
    "hostPort": (0,),
    "defaultMode": (0o644,),
    "expirationSeconds": (3600,),
    "volumeMode": ("Filesystem",),
    "procMount": ("Default",),
    "divisor": ("0", 0),
    **dict.fromkeys(["hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "readOnly"], (False,)),
}
"""Values of fields that mean the same as the absence of the field."""
_TEXTS: Final = ("labels", "annotations", "nodeSelector", "matchLabels")
"""Maps in which an empty text is a value."""
_AMOUNTS: Final = ("limits", "requests")


def none_known(_kind: str, _namespace: str, _name: str) -> None:
    """The Templates if there are none."""


def template_of(value: JSON) -> JSON | None:
    """The pod template of a ReplicaSet or ControllerRevision (JSON); None if it has none."""
    spec = within(value, "data", "spec") if value.get("kind") == "ControllerRevision" else within(value, "spec")
    return within(spec, "template") or None


def revision_of(pod: Pod) -> tuple[str, str]:
    """Kind and name of the object with the template that the pod was made from."""
    kind, owner = pod.owner
    if kind == "ReplicaSet":
        return "ReplicaSet", owner
    # The label has the name of a StatefulSet's revision, and only the hash of that of a DaemonSet.
    label = pod.labels.get(_REVISION_HASH, "")
    return "ControllerRevision", label if kind == "StatefulSet" else f"{owner}-{label}"


def is_same_template(manifest: JSON, stored: JSON) -> bool:
    """Whether a manifest has the pod template that the API server has stored."""
    mine, theirs = _without_defaults(manifest), _without_defaults(stored)
    kept, ours = (dict(object_.get("metadata", {}).get("annotations", {})) for object_ in (theirs, mine))
    if _RESTARTED in kept and _RESTARTED not in ours:
        del kept[_RESTARTED]
        theirs = {**theirs, "metadata": _filled({**theirs["metadata"], "annotations": kept})}
    return _filled(mine) == _filled(theirs)


def has_images_of(pod: Pod, template: JSON) -> bool:
    """Whether the containers of the template have the same images in the pod. Webhooks may have added containers."""
    known = dict(pod.images)
    spec = template.get("spec") or {}
    wanted = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return not known or all(known.get(container.get("name")) == container.get("image", "") for container in wanted)


def _without_defaults(template: JSON) -> dict[str, Any]:
    metadata, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key != HASH}
    metadata = {"labels": labels, "annotations": metadata.get("annotations") or {}}
    account = spec.pop("serviceAccount", "")
    spec.setdefault("serviceAccountName", account)
    if spec.get("restartPolicy") == "Always":
        del spec["restartPolicy"]
    for name in ("initContainers", "containers"):
        spec[name] = [
            _container(container, shares_network=bool(spec.get("hostNetwork"))) for container in spec.get(name) or ()
        ]
    return {"metadata": _filled(metadata), "spec": _reduced(spec)}


def _container(container: JSON, *, shares_network: bool) -> JSON:
    """The container without the defaults that depend on other fields."""
    found = dict(container)
    image = str(found.get("image", ""))
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    newest = "@" not in image and tag in ("", "latest")
    if found.get("imagePullPolicy") == ("Always" if newest else "IfNotPresent"):
        del found["imagePullPolicy"]
    resources = dict(found.get("resources") or {})
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    found["resources"] = resources
    if shares_network:
        ports = found.get("ports") or ()
        found["ports"] = [{**port, "hostPort": port.get("hostPort") or port.get("containerPort")} for port in ports]
    return found


def _reduced(value: Any, name: str = "") -> Any:
    """A value without empty values and defaults. `name` is the field that has it."""
    if isinstance(value, list):
        return [_reduced(element) for element in value]
    if not isinstance(value, dict):
        return _amount(value) if name in ("sizeLimit", "divisor") else value
    if name in _TEXTS:
        return value
    if name in _AMOUNTS:
        return {key: _amount(amount) for key, amount in value.items()}
    kept = {key: field for key, field in value.items() if field is None or field not in _DEFAULTS.get(key, ())}
    return _filled({key: _reduced(field, key) for key, field in kept.items()})


def _filled(value: JSON) -> dict[str, Any]:
    """The fields that are not empty. The API server stores no others."""
    return {key: field for key, field in value.items() if field is not None and field not in ("", [], {})}


def _amount(value: Any) -> Any:
    """A quantity as a number, because the API server writes it in another way."""
    try:
        return Quantity.parse(str(value)).nanos
    except QuantityError:
        return value
