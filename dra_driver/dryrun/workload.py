# SPDX-License-Identifier: Apache-2.0
"""Pods and workloads, turned into demands: the claims and extended resources that the scheduler has to allocate.

Only the fields about devices are read. A reference to a claim or template that does not exist is an error, because the
needs of the pod are then unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..command import InputError
from ..resource import EXACT_COUNT, DeviceRequirements, ObjectMeta, ResourceClaim, ResourceClaimTemplate
from ..resource.codec import Decoded, DecodeError, Fields, decode
from ..scheduling import form_errors
from ..scheduling.decode import extended_requests
from ..scheduling.objects import ExtendedRequest
from ..scheduling.resources import read_containers, section
from .documents import Document
from .status import Note
from .strict import Identity, identity_of
from .world import is_of_world

_GROUP = "resource.k8s.io/"
_DEVICE_KINDS = {"ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"}
POD_PATHS: dict[str, tuple[str, ...]] = {
    "Pod": ("spec",),
    "Deployment": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
_REPLICAS: dict[str, tuple[str, ...]] = {
    "Deployment": ("spec", "replicas"),
    "ReplicaSet": ("spec", "replicas"),
    "StatefulSet": ("spec", "replicas"),
    "Job": ("spec", "parallelism"),
    "CronJob": ("spec", "jobTemplate", "spec", "parallelism"),
}
_COMPLETIONS: Final = "completions"
"""Beside `parallelism`: a Job never has more pods at once than are to complete."""

Lookup = Callable[[str, str, str], Decoded | None]
"""(kind, namespace, name) -> a ResourceClaim or ResourceClaimTemplate from elsewhere, None where there is none."""

MOST_DEMANDS: Final = 1000
"""The number of pods that are placed one by one. For more copies, there is --replicas."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod with all its claims, or a claim by itself: everything that is scheduled together.

    `node_name` and `node_selector` are the pod's own, `extended` the extended resources that its containers request.
    `submitted` is the pod (JSON) as the API server is given it. `workload` names what makes several equal pods; of a
    DaemonSet `daemon_template` is the pods' spec, `own_claims` are the names of claims that each pod gets for itself,
    and a pod of it is for `daemon_node`. `state` is set where the cluster has the pod on a node: `running` or `ended`.
    """

    name: str
    claims: tuple[ResourceClaim, ...]
    node_name: str = ""
    node_selector: Mapping[str, str] | None = None
    extended: tuple[ExtendedRequest, ...] = ()
    pod: ObjectMeta = field(default_factory=ObjectMeta)
    submitted: Mapping[str, Any] | None = None
    workload: str = ""
    daemon_template: dict[str, Any] | None = None
    daemon_node: str = ""
    own_claims: frozenset[str] = frozenset()
    state: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """The documents, sorted: the demands to evaluate, and objects of the cluster. `ignored` are the other documents.

    `around` are the objects that matter for the whole pod, such as nodes. `unknown` are notes about objects that were
    not evaluated, or not as a whole, and `errors` about objects that cannot be used (`status`).
    """

    demands: tuple[Demand, ...] = ()
    objects: tuple[Decoded, ...] = ()
    ignored: tuple[Document, ...] = ()
    around: tuple[Document, ...] = ()
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()


class DocumentError(InputError):
    """Objects that the API server would refuse, with the reasons."""

    def __init__(self, *problems: tuple[Document, DecodeError]) -> None:
        super().__init__("\n".join(f"{document}: {problem}" for document, problem in problems))
        self.problems = problems


def nothing_else(_kind: str, _namespace: str, _name: str) -> None:
    """The Lookup if there are only the documents."""


def sort_documents(documents: Sequence[Document], lookup: Lookup = nothing_else) -> Input:
    """The demands and objects of the documents. Claims and templates that are not among them are looked up.

    Raises InputError for a document that cannot be used, and the exceptions of `lookup`.
    """
    objects: list[Decoded] = []
    workloads: list[Document] = []
    ignored: list[Document] = []
    for document in documents:
        if document.kind in _DEVICE_KINDS or document.value["apiVersion"].startswith(_GROUP) or document.kind == "Node":
            objects.append(_as_stored(decode_document(document)))
        elif document.kind in POD_PATHS:
            workloads.append(document)
        else:
            ignored.append(document)
    _check_form(documents)
    claims = [one for one in objects if isinstance(one, ResourceClaim)]
    templates = [one for one in objects if isinstance(one, ResourceClaimTemplate)]
    alone: list[ResourceClaim | ResourceClaimTemplate] = [*(one for one in claims if not one.allocation), *templates]
    found = _Found((*claims, *templates), lookup)
    demands = [demand for workload in workloads for demand in _demands(workload, found)]
    demands += [_alone(one) for one in alone if _key(one) not in found.used]
    if len(demands) > MOST_DEMANDS:
        raise InputError(
            f"there are {len(demands)} pods, templates and claims to place, more than {MOST_DEMANDS}: give fewer, or"
            " one with --replicas"
        )
    kept = [one for one in objects if not isinstance(one, ResourceClaimTemplate)]
    allocated = [one for one in kept if not isinstance(one, ResourceClaim) or one.allocation is not None]
    around = [one for one in documents if one.kind != "Pod" and is_of_world(one.value.get("apiVersion"), one.kind)]
    return Input(tuple(demands), tuple(allocated), tuple(ignored), tuple(around))


def _check_form(documents: Sequence[Document]) -> None:
    """Refuse unknown fields, wrong types, and two objects of one name, as the API server does."""
    problems = [(one, problem) for one in documents if not one.stored for problem in form_errors(one.value)]
    seen: dict[Identity, Document] = {}
    for one in documents:
        identity = identity_of(one.value)
        other = seen.setdefault(identity, one) if identity is not None else one
        if other is not one:
            said = f"there is another {one.kind} of this name in {other.source}"
            problems.append((one, DecodeError("metadata.name", said)))
    if problems:
        raise DocumentError(*problems)


def decode_document(document: Document) -> Decoded:
    """The object of a resource.k8s.io (or Node) document. Raises InputError."""
    try:
        return decode(document.value)
    except DecodeError as error:
        raise DocumentError((document, error)) from None


def _as_stored(one: Decoded) -> Decoded:
    """The claim as the API server stores it: an exact count of 0 becomes 1."""

    def stored(_: str, required: DeviceRequirements) -> DeviceRequirements:
        exact = required.allocation_mode == EXACT_COUNT and required.count == 0
        return replace(required, count=1) if exact else required

    if not isinstance(one, ResourceClaim | ResourceClaimTemplate):
        return one
    return replace(one, spec=one.spec.with_requirements(stored))


_Key = tuple[str, str, str]
"""The kind, namespace and name of a ResourceClaim or ResourceClaimTemplate."""


def _key(one: ResourceClaim | ResourceClaimTemplate) -> _Key:
    return type(one).__name__, one.metadata.namespace or "default", one.metadata.name


class _Found:
    """Claims and templates of the documents, and those that are looked up elsewhere."""

    def __init__(self, given: Iterable[ResourceClaim | ResourceClaimTemplate], lookup: Lookup) -> None:
        self._lookup = lookup
        self._known: dict[_Key, Decoded | None] = {_key(one): one for one in given}
        self.used: set[_Key] = set()

    def find(self, kind: str, namespace: str, name: str) -> Decoded | None:
        """The claim or template. None if there is none."""
        key = (kind, namespace, name)
        self.used.add(key)
        if key not in self._known:
            self._known[key] = self._lookup(*key)
        return self._known[key]


def _alone(one: ResourceClaim | ResourceClaimTemplate) -> Demand:
    """A claim that no pod uses, or the claim of a template that no pod uses."""
    claim = one if isinstance(one, ResourceClaim) else _instantiate(one, one.metadata.name, "")
    return Demand(f"{type(one).__name__} {one.metadata}", (claim,))


def _demands(document: Document, found: _Found) -> list[Demand]:
    """One demand for each pod that the document creates."""
    path = ".".join(POD_PATHS[document.kind])
    if not isinstance(_at(document.value, POD_PATHS[document.kind]), dict):
        raise InputError(f"{document}: {path} is missing")
    template = _at(document.value, POD_PATHS[document.kind][:-1])
    try:
        count = _replicas(document)
        return [_demand(document, template, found, index, count) for index in range(count)]
    except DecodeError as error:
        raise DocumentError((document, DecodeError(f"{path}.{error.path}", error.problem))) from None


def _at(value: Any, path: Sequence[str]) -> Any:
    """The value at a path of JSON; None if there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _replicas(document: Document) -> int:
    """How many pods the document makes at once."""
    if document.kind not in _REPLICAS:
        return 1
    path = _REPLICAS[document.kind]
    wanted, completions = _count(_at(document.value, path)), _count(_at(document.value, (*path[:-1], _COMPLETIONS)))
    count = 1 if wanted is None else wanted
    if completions is not None:
        count = min(count, completions)
    if count > MOST_DEMANDS:
        where = f"{document}: {'.'.join(path)}"
        raise InputError(f"{where}: more than {MOST_DEMANDS} pods: ask for one with --replicas instead")
    return count


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _demand(document: Document, template: Mapping[str, Any], found: _Found, index: int, count: int) -> Demand:
    spec = template["spec"]
    namespace = (document.value.get("metadata") or {}).get("namespace") or "default"
    owner = document.name.rpartition("/")[2]
    pod = owner if document.kind == "Pod" and count == 1 else f"{owner}-{index}"
    fields = Fields(spec, strict=False)
    made = _made_claims(document.value) if document.stored else {}
    claims = dict(fields.objects("resourceClaims", lambda one: _claim(one, namespace, pod, found, made)))
    for key in ("initContainers", "containers"):
        fields.objects(key, lambda one: _check_container(one, claims))
    label = f"{document.kind} {document.name}" + (f", pod {index + 1} of {count}" if count > 1 else "")
    return Demand(
        label,
        tuple(claims.values()),
        fields.text("nodeName"),
        fields.text_map("nodeSelector") or None,
        tuple(extended_requests(read_containers(Fields(spec, strict=False)))),
        ObjectMeta(name=pod, namespace=namespace),
        {"metadata": {**_labels(template), "name": pod, "namespace": namespace}, "spec": spec},
        f"{document.kind} {document.name}" if count > 1 or document.kind == "DaemonSet" else "",
        spec if document.kind == "DaemonSet" else None,
        own_claims=frozenset(f"{pod}-{name}" for name in claims),
        state=_state(document),
    )


def _state(document: Document) -> str:
    """The state of a pod of a cluster: `running`, `ended`, or empty if it is pending."""
    status = document.value.get("status") or {}
    if not document.stored or not (document.value.get("spec") or {}).get("nodeName"):
        return ""
    return "ended" if status.get("phase") in ("Succeeded", "Failed") else "running"


def _made_claims(pod: Mapping[str, Any]) -> dict[str, str]:
    """The claims that were made for a pod of a cluster, by the names that the pod has for them."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    return {one["name"]: one["resourceClaimName"] for one in made if one.get("resourceClaimName")}


def _labels(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of a pod that a workload creates."""
    metadata = template.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return {name: metadata[name] for name in ("labels", "annotations") if isinstance(metadata.get(name), dict)}


def _claim(
    fields: Fields, namespace: str, pod: str, found: _Found, made: Mapping[str, str]
) -> tuple[str, ResourceClaim]:
    name = fields.required_text("name")
    direct, template = fields.text("resourceClaimName"), fields.text("resourceClaimTemplateName")
    if bool(direct) == bool(template):
        raise fields.error("", "exactly one of resourceClaimName and resourceClaimTemplateName must be set")
    direct = direct or made.get(name, "")
    kind, wanted = ("ResourceClaim", direct) if direct else ("ResourceClaimTemplate", template)
    match found.find(kind, namespace, wanted):
        case ResourceClaim() as claim:
            return name, claim
        case ResourceClaimTemplate() as source:
            return name, _instantiate(source, f"{pod}-{name}", namespace)
    raise fields.error("", f"there is no {kind} {namespace}/{wanted} among the documents or where the devices are from")


def _check_container(fields: Fields, claims: Mapping[str, ResourceClaim]) -> None:
    """Check the container's references to claims of the pod."""
    resources = section(fields, "resources")
    for claim in resources.objects("claims", lambda one: one):
        name, request = claim.required_text("name"), claim.text("request")
        if name not in claims:
            raise claim.error("name", f"{name!r} is not in resourceClaims (there is {', '.join(claims) or 'none'})")
        names = [one.name for one in claims[name].spec.requests]
        if request and request not in names:
            raise claim.error("request", f"{request!r} is no request of the claim (it has {', '.join(names)})")


def _instantiate(template: ResourceClaimTemplate, name: str, namespace: str) -> ResourceClaim:
    metadata = replace(template.metadata, name=name, namespace=namespace or template.metadata.namespace)
    unread = (path.removeprefix("spec.") for path in template.unread if path.startswith("spec.spec."))
    return ResourceClaim(metadata, template.spec, unread=tuple(unread))
