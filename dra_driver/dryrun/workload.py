# SPDX-License-Identifier: Apache-2.0
"""Documents, sorted, and workloads turned into demands: the claims and extended resources that are to be allocated.

`groups` tells which pods an object makes. Of these, only the fields about devices are read here. An object that cannot
be used is an error of its own, and hides no other object.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..kube.resource import EXACT_COUNT, DeviceRequirements, ObjectMeta, ResourceClaim, ResourceClaimTemplate
from ..kube.resource.codec import Decoded, DecodeError, Fields, decode
from ..process.command import InputError
from ..scheduler.pods import UNKNOWN_FIELD, form_errors, has_form, pod_spec_errors
from ..scheduler.pods.decode import extended_requests
from ..scheduler.pods.names import label_problems, subdomain_problems
from ..scheduler.pods.objects import ExtendedRequest
from ..scheduler.pods.resources import read_containers, section
from .controllers import Workload, workload_of
from .documents import JSON, Document, DocumentError, within
from .groups import Elsewhere, PodGroup, ReferencedObjects, key_of, only_files, pods_of
from .kinds import KINDS
from .podforms import FORMS
from .podgroups import POD_GROUP
from .status import Note
from .strict import Identity, identity_of
from .world import is_of_world

_GROUP = "resource.k8s.io/"
_DEVICE_KINDS = {"ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"}
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_GROUP_OF_PODS: Final = "schedulingGroup"
_SHARED_GATE: Final = "DRAWorkloadResourceClaims"
_CLAIM_FIELDS: Final = ("name", "resourceClaimName", "resourceClaimTemplateName")
_NO_LABEL: Final = re.compile("[^a-z0-9-]+")

Lookup = Callable[[str, str, str], Decoded | None]
"""(kind, namespace, name) -> a ResourceClaim or ResourceClaimTemplate from elsewhere, None where there is none."""
Names = Callable[[str], Iterable[str]]
"""(kind) -> the NAMESPACE/NAME of ResourceClaims or ResourceClaimTemplates from elsewhere, for suggestions."""

MOST_DEMANDS: Final = 5000
"""The number of pods that are placed one by one. For more copies, there is --replicas."""

_Key = tuple[str, str, str]
"""The kind, namespace and name of a ResourceClaim or ResourceClaimTemplate."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod with all its claims, or a claim by itself: everything that is scheduled together.

    `node_name` and `node_selector` are the pod's own, `extended` the extended resources that its containers request.
    `submitted` is the pod (JSON) as the API server is given it. `workload` names what makes several equal pods; of a
    DaemonSet `daemon_template` is the pods' spec, `own_claims` are the names of claims that each pod gets for itself,
    and a pod of it is for `daemon_node`. `owner` is set if the cluster may have pods of the workload. `replaces` names
    the pods that are removed before this pod is placed. `state` is set where the cluster has the pod on a node:
    `running` or `ended`.

    `missing` says which claims and templates there are not. Demands of one `stage` are placed together, and give back
    their devices after the last of them. `notes` and `unknown` are added to the verdict.
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
    missing: tuple[str, ...] = ()
    stage: str = ""
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    owner: Workload | None = None
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Input:
    """The documents, sorted: the demands to evaluate, and objects of the cluster. `ignored` are the other documents.

    `around` are the objects that matter for the whole pod, such as nodes. `unknown` are notes about objects that were
    not evaluated, or not as a whole, and `errors` about objects that cannot be used (`status`). `idle` are the names of
    workloads that make no pods now.
    """

    demands: tuple[Demand, ...] = ()
    objects: tuple[Decoded, ...] = ()
    ignored: tuple[Document, ...] = ()
    around: tuple[Document, ...] = ()
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    idle: tuple[str, ...] = ()


def nothing_else(_kind: str, _namespace: str, _name: str) -> None:
    """The Lookup if there are only the documents."""


def no_names(_kind: str) -> tuple[str, ...]:
    """The Names if there are only the documents."""
    return ()


def sort_documents(
    documents: Sequence[Document],
    lookup: Lookup = nothing_else,
    names: Names = no_names,
    elsewhere: Elsewhere = only_files,
) -> Input:
    """The demands and objects of the documents. Claims and templates that are not among them are looked up, and other
    objects to which workloads refer are looked for `elsewhere`.

    Objects that cannot be used are in `errors`. Raises the exceptions of `lookup` and `elsewhere`, and InputError if
    there are too many demands.
    """
    errors: list[Note] = []
    usable = [document for document in documents if _is_usable(document, errors)]
    usable = list(_without_twins(usable, errors))
    objects = list(_decoded_objects(usable, errors))
    workloads: list[Document] = []
    ignored: list[Document] = []
    for document in usable:
        if not _is_decoded(document):
            (workloads if is_workload(document) else ignored).append(document)
    claims = [object_ for object_ in objects if isinstance(object_, ResourceClaim | ResourceClaimTemplate)]
    found = _Found(claims, lookup, names)
    made = _Made(found, ReferencedObjects((document.value for document in usable), elsewhere), errors)
    for workload in workloads:
        made.add(workload)
    demands = [*made.demands(), *_unused(claims, found)]
    if len(demands) > MOST_DEMANDS:
        raise InputError(
            f"there are {len(demands)} pods, templates and claims to place, more than {MOST_DEMANDS}: give fewer, or"
            " one with --replicas"
        )
    return Input(
        tuple(demands),
        tuple(object_ for object_ in objects if _is_of_cluster(object_)),
        tuple(ignored),
        around=tuple(document for document in usable if _is_around(document)),
        unknown=tuple(made.unknown),
        errors=tuple(errors),
        idle=tuple(made.idle),
    )


def _decoded_objects(documents: Iterable[Document], errors: list[Note]) -> Iterator[Decoded]:
    """The objects of resource.k8s.io and the Nodes. Objects that cannot be decoded are errors."""
    for document in documents:
        if _is_decoded(document):
            try:
                yield _as_stored(decode_document(document))
            except DocumentError as error:
                errors += error.notes


def _unused(claims: Sequence[ResourceClaim | ResourceClaimTemplate], found: "_Found") -> Iterator[Demand]:
    """The demands of claims without an allocation, and then of templates, that no pod uses."""
    alone: list[ResourceClaim | ResourceClaimTemplate] = [
        *(claim for claim in claims if isinstance(claim, ResourceClaim) and not claim.allocation),
        *(claim for claim in claims if isinstance(claim, ResourceClaimTemplate)),
    ]
    yield from (_alone(claim) for claim in alone if _key(claim) not in found.used)


def _is_of_cluster(object_: Decoded) -> bool:
    """Whether the object belongs to the cluster that demands are placed in: all but templates and pending claims."""
    if isinstance(object_, ResourceClaim):
        return object_.allocation is not None
    return not isinstance(object_, ResourceClaimTemplate)


def _is_around(document: Document) -> bool:
    """Whether the object, which is no pod, matters for whole pods."""
    return document.kind != "Pod" and is_of_world(document.value.get("apiVersion"), document.kind)


def is_workload(document: Document) -> bool:
    """Whether the object may make pods: its kind is known for it, or is not known at all."""
    if key_of(document.value) in KINDS:
        return True
    reading = pods_of(document.value, ReferencedObjects(), FORMS)
    return bool(reading.groups or reading.unknown)


def _is_decoded(document: Document) -> bool:
    version = document.value["apiVersion"]
    if document.kind in _DEVICE_KINDS or version.startswith(_GROUP):
        return True
    return document.kind == "Node" and version == "v1"


def _is_usable(document: Document, errors: list[Note]) -> bool:
    """Whether the object has a valid name and only fields that its kind has, of their types. The others are errors."""
    wrong = [] if document.stored else [*form_errors(document.value), *_name_errors(document)]
    errors += (document.note(str(error), error.path) for error in wrong)
    return not wrong


def _name_errors(document: Document) -> Iterator[DecodeError]:
    """The API server's errors about the name and the namespace of an object. Those of a Pod are in its verdict."""
    read = _is_decoded(document) or key_of(document.value) in KINDS
    if document.kind == "Pod" or not read:
        return
    metadata = within(document.value, "metadata")
    for key, problems in (("name", subdomain_problems), ("namespace", label_problems)):
        value = metadata.get(key)
        for problem in problems(value) if isinstance(value, str) else ():
            yield DecodeError(f"metadata.{key}", f'Invalid value: "{value}": {problem}')


def _without_twins(documents: Iterable[Document], errors: list[Note]) -> Iterator[Document]:
    """The objects without those whose name another one of their kind has. Names of kinds that are not read are free."""
    seen: dict[Identity, Document] = {}
    for document in documents:
        identity = identity_of(document.value)
        other = seen.setdefault(identity, document) if identity is not None else document
        is_read = _is_decoded(document) or key_of(document.value) in KINDS
        if other is not document and (is_read or is_of_world(document.value.get("apiVersion"), document.kind)):
            said = f"metadata.name: there is another {document.kind} of this name in {other.source}"
            errors.append(document.note(said, "metadata.name"))
        else:
            yield document


def decode_document(document: Document) -> Decoded:
    """The object of a resource.k8s.io (or Node) document. Raises InputError."""
    try:
        return decode(document.value)
    except DecodeError as error:
        raise DocumentError((document, error)) from None


def _as_stored(object_: Decoded) -> Decoded:
    """The claim as the API server stores it: an exact count of 0 becomes 1."""

    def stored(_: str, required: DeviceRequirements) -> DeviceRequirements:
        exact = required.allocation_mode == EXACT_COUNT and required.count == 0
        return replace(required, count=1) if exact else required

    if not isinstance(object_, ResourceClaim | ResourceClaimTemplate):
        return object_
    return replace(object_, spec=object_.spec.with_requirements(stored))


def _key(object_: ResourceClaim | ResourceClaimTemplate) -> _Key:
    return type(object_).__name__, object_.metadata.namespace or "default", object_.metadata.name


class _Found:
    """Claims and templates of the documents, and of other places (`lookup`)."""

    def __init__(
        self, given: Iterable[ResourceClaim | ResourceClaimTemplate], lookup: Lookup, names: Names = no_names
    ) -> None:
        self._lookup = lookup
        self._names = names
        self._known: dict[_Key, Decoded | None] = {_key(object_): object_ for object_ in given}
        self.used: set[_Key] = set()

    def find(self, kind: str, namespace: str, name: str) -> Decoded | None:
        """The claim or template. None if there is none."""
        key = (kind, namespace, name)
        self.used.add(key)
        if key not in self._known:
            self._known[key] = self._lookup(*key)
        return self._known[key]

    def missing(self, kind: str, namespace: str, name: str) -> str:
        """The error about a missing claim or template, with similar names."""
        given = (f"{place}/{other}" for of_kind, place, other in self._known if of_kind == kind)
        known = dict.fromkeys([name for name in given if self._known[_split(kind, name)]] + [*self._names(kind)])
        wanted = f"{namespace}/{name}"
        close = [candidate for candidate in known if candidate.partition("/")[2] == name]
        close += difflib.get_close_matches(wanted, known, n=3)
        similar = f"; similar: {', '.join(dict.fromkeys(close))}" if close else ""
        return f"there is no {kind} {wanted}{similar}"


def _split(kind: str, name: str) -> _Key:
    namespace, _, last = name.partition("/")
    return kind, namespace, last


def _alone(object_: ResourceClaim | ResourceClaimTemplate) -> Demand:
    """A claim that no pod uses, or the claim of a template that no pod uses."""
    claim = object_ if isinstance(object_, ResourceClaim) else _instantiate(object_, object_.metadata.name, "")
    return Demand(f"{type(object_).__name__} {object_.metadata}", (claim,))


class _Made:
    """The demands of workloads, while these are read one after the other."""

    def __init__(self, found: _Found, library: ReferencedObjects, errors: list[Note]) -> None:
        self._found, self._library, self._errors = found, library, errors
        self._demands: list[tuple[Document, list[Demand]]] = []
        self._shared: dict[tuple[str, str], ResourceClaim] = {}
        """Claims that were made for PodGroups, by namespace and name."""
        self.unknown: list[Note] = []
        self.idle: list[str] = []

    def add(self, document: Document) -> None:
        """Reads the pods of a workload."""
        demands: list[Demand] = []
        try:
            reading = pods_of(document.value, self._library, FORMS)
            named: set[str] = set()
            for group in reading.groups:
                demands += self._of_group(document, group, _pod_name(document, group, named))
        except DocumentError as error:
            self._errors += error.notes
            return
        except DecodeError as error:
            self._errors.append(document.note(str(error), error.path))
            return
        without_pods = [text for group in reading.groups if not group.count for text in group.unknown]
        self.unknown += (document.note(text) for text in (*reading.unknown, *without_pods))
        if not demands and not reading.unknown and not without_pods:
            self.idle.append(f"{document.kind} {document.name}")
        self._demands.append((document, demands))

    def demands(self) -> list[Demand]:
        """All of them, without those of objects that only others use and that others have used."""
        found = []
        for document, demands in self._demands:
            known = KINDS.get(key_of(document.value))
            if known is None or not known.reusable or id(document.value) not in self._library.used:
                found += demands
        return found

    def _of_group(self, document: Document, group: PodGroup, name: str) -> list[Demand]:
        if not group.count:
            return []
        if not has_form(document.value):
            wrong = list(pod_spec_errors(group.spec))
            if wrong:
                places = [(DecodeError(group.place(error.path), error.problem)) for error in wrong]
                raise DocumentError(*((document, place) for place in places))
        if group.count > MOST_DEMANDS:
            said = f"more than {MOST_DEMANDS} pods: ask for one with --replicas instead"
            raise DocumentError((document, DecodeError(group.counted or group.path, said)))
        try:
            return [self._demand(document, group, index, name) for index in range(group.count)]
        except DecodeError as error:
            raise DecodeError(group.place(error.path), error.problem) from None

    def _demand(self, document: Document, group: PodGroup, index: int, base: str) -> Demand:
        spec, count = group.spec, group.count
        namespace = (document.value.get("metadata") or {}).get("namespace") or "default"
        pod = base if document.kind == "Pod" and count == 1 else f"{base}-{index}"
        claims, missing, shared = self._claims(document, group, pod, namespace)
        for key in ("initContainers", "containers"):
            Fields(spec, strict=False).objects(key, lambda fields: _check_container(fields, claims))
        name = f"{document.kind} {document.name}" + (f", {group.role}" if group.role else "")
        label = name + (f", pod {index + 1} of {count}" if count > 1 else "")
        fields = Fields(spec, strict=False)
        kept = tuple(claim for claim in claims.values() if claim is not None)
        return Demand(
            label,
            kept,
            fields.text("nodeName"),
            fields.text_map("nodeSelector") or None,
            tuple(extended_requests(read_containers(Fields(spec, strict=False)))),
            ObjectMeta(name=pod, namespace=namespace),
            {"metadata": {**_labels(group.metadata), "name": pod, "namespace": namespace}, "spec": spec},
            name if count > 1 or group.each_node else "",
            spec if group.each_node else None,
            own_claims=frozenset(f"{pod}-{claim}" for claim in claims),
            state=_state(document),
            owner=workload_of(document.value),
            missing=missing,
            stage=f"{document} {group.stage}" if group.stage else "",
            notes=(*group.notes, *_other_scheduler(group.spec), *shared),
            unknown=(*group.unknown, *_unread(document), *self._of_scheduling_group(spec, namespace)),
        )

    def _claims(
        self, document: Document, group: PodGroup, pod: str, namespace: str
    ) -> tuple[dict[str, ResourceClaim | None], tuple[str, ...], tuple[str, ...]]:
        """The claims of a pod by their names in it, or None for missing claims, and the errors about these.

        The last texts are about claims that the pod shares with its PodGroup.
        """
        made = _made_claims(document.value) if document.stored else {}
        own: dict[str, Decoded] = {template["metadata"]["name"]: decode(template) for template in group.templates}
        missing: list[str] = []
        shared: list[str] = []
        pod_group, entries = self._pod_group(group.spec, namespace)

        def claim(fields: Fields) -> tuple[str, ResourceClaim | None]:
            name = fields.required_text("name")
            direct, template = fields.text("resourceClaimName"), fields.text("resourceClaimTemplateName")
            if bool(direct) == bool(template):
                raise fields.error("", "exactly one of resourceClaimName and resourceClaimTemplateName must be set")
            direct = direct or made.get(name, "")
            kind, wanted = ("ResourceClaim", direct) if direct else ("ResourceClaimTemplate", template)
            is_own = bool(template) and not direct and template in own
            match own[template] if is_own else self._found.find(kind, namespace, wanted):
                case ResourceClaim() as found:
                    return name, found
                case ResourceClaimTemplate() as source if (name, "", template) in entries:
                    shared.append(
                        f"the claim {name} is that of PodGroup {pod_group}, one for all its pods (feature gate"
                        f" {_SHARED_GATE})"
                    )
                    made_name = f"{pod_group}-{name}"
                    return name, self._shared.setdefault(
                        (namespace, made_name), _instantiate(source, made_name, namespace)
                    )
                case ResourceClaimTemplate() as source:
                    return name, _instantiate(source, f"{pod}-{name}", namespace)
            missing.append(self._found.missing(kind, namespace, wanted))
            return name, None

        found = dict(Fields(group.spec, strict=False).objects("resourceClaims", claim))
        return found, tuple(missing), tuple(shared)

    def _pod_group(self, spec: JSON, namespace: str) -> tuple[str, frozenset[tuple[str, ...]]]:
        """The name of the PodGroup of pods with claims from templates, and the claims of the group: name,
        resourceClaimName and resourceClaimTemplateName.
        """
        name = _group_name(spec) if _has_templates(spec) else ""
        value = self._library.find(POD_GROUP, namespace, name) if name else None
        entries = within(value or {}, "spec").get("resourceClaims") or []
        known = (entry for entry in entries if isinstance(entry, dict))
        return name, frozenset(tuple(str(entry.get(field) or "") for field in _CLAIM_FIELDS) for entry in known)

    def _of_scheduling_group(self, spec: JSON, namespace: str) -> Iterator[str]:
        """Texts about the PodGroup of pods, which `fit` does not evaluate (KEP 4671)."""
        name = _group_name(spec)
        if not name:
            return
        yield f"the field spec.{_GROUP_OF_PODS} of the pod is not evaluated: dra-dryrun gangs places the whole group"
        if _has_templates(spec) and self._library.find(POD_GROUP, namespace, name) is None:
            reason = self._library.reason(POD_GROUP, namespace, name)
            yield f"PodGroup {namespace}/{name} {reason}: whether its pods share claims is not known"


def _has_templates(spec: JSON) -> bool:
    entries = spec.get("resourceClaims")
    return isinstance(entries, list) and any(
        isinstance(entry, dict) and entry.get("resourceClaimTemplateName") for entry in entries
    )


def _group_name(spec: JSON) -> str:
    name = within(spec, _GROUP_OF_PODS).get("podGroupName")
    return name if isinstance(name, str) else ""


def _pod_name(document: Document, group: PodGroup, named: set[str]) -> str:
    """The name of the pods of a group without their numbers. It is added to the names of the object's other groups."""
    owner = document.name.rpartition("/")[2]
    role = _NO_LABEL.sub("-", group.role.lower()).strip("-")
    base = f"{owner}-{role}" if role else owner
    name = next(
        candidate
        for candidate in (base, *(f"{base}-g{number}" for number in range(2, len(named) + 3)))
        if candidate not in named
    )
    named.add(name)
    return name


def _state(document: Document) -> str:
    """The state of a pod of a cluster: `running`, `ended`, or empty if it is pending."""
    status = document.value.get("status") or {}
    if not document.stored or not (document.value.get("spec") or {}).get("nodeName"):
        return ""
    return "ended" if status.get("phase") in ("Succeeded", "Failed") else "running"


def _other_scheduler(spec: JSON) -> Iterator[str]:
    """A note about a pod that kube-scheduler's default profile does not place."""
    name = spec.get("schedulerName")
    if name and name != _DEFAULT_SCHEDULER:
        yield f"the pod names the scheduler {name}, and this is the verdict of kube-scheduler's default profile"


def _unread(document: Document) -> Iterator[str]:
    """Texts about fields of a pod of a cluster that may change its verdict, such as those of a newer Kubernetes."""
    if document.kind != "Pod" or not document.stored:
        return
    errors = (form_error for form_error in form_errors(document.value) if form_error.problem.startswith(UNKNOWN_FIELD))
    paths = [error.path for error in errors if error.path.startswith("spec.")]
    yield from (f"the field {path} of the pod is not evaluated" for path in paths)


def _made_claims(pod: Mapping[str, Any]) -> dict[str, str]:
    """The claims that were made for a pod of a cluster, by the names that the pod has for them."""
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or []
    return {status["name"]: status["resourceClaimName"] for status in made if status.get("resourceClaimName")}


def _labels(metadata: JSON) -> Mapping[str, Any]:
    """The metadata of a pod that a workload creates."""
    return {name: metadata[name] for name in ("labels", "annotations") if isinstance(metadata.get(name), dict)}


def _check_container(fields: Fields, claims: Mapping[str, ResourceClaim | None]) -> None:
    """Check the container's references to claims of the pod."""
    resources = section(fields, "resources")
    for claim in resources.objects("claims", lambda fields: fields):
        name, request = claim.required_text("name"), claim.text("request")
        if name not in claims:
            raise claim.error("name", f"{name!r} is not in resourceClaims (there is {', '.join(claims) or 'none'})")
        found = claims[name]
        names = [request.name for request in found.spec.requests] if found is not None else [request]
        if request and request not in names:
            raise claim.error("request", f"{request!r} is no request of the claim (it has {', '.join(names)})")


def _instantiate(template: ResourceClaimTemplate, name: str, namespace: str) -> ResourceClaim:
    metadata = replace(template.metadata, name=name, namespace=namespace or template.metadata.namespace)
    unread = (path.removeprefix("spec.") for path in template.unread if path.startswith("spec.spec."))
    return ResourceClaim(metadata, template.spec, unread=tuple(unread))
