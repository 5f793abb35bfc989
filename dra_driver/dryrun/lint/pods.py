# SPDX-License-Identifier: Apache-2.0
"""Pods and the workloads that contain a pod template: the claims that they name and that their containers use."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ...resource.codec import Fields
from ..documents import JSON
from .finding import Issue, error, warning
from .source import Source
from .subject import STAND_IN, ClaimSpec, Context, Subject, decode_all

POD_CLAIM = error("pod-claim", "The API server refuses a claim of a pod, or a container's use of it.")
CONTAINER_CLAIM = error("container-names-no-claim", "A container uses a claim that is not in resourceClaims.")
CONTAINER_REQUEST = error("container-names-no-request", "A container uses a request that the claim does not have.")
NOT_FOUND = warning("claim-not-found", "The ResourceClaim or ResourceClaimTemplate of a pod is not among the files.")
UNUSED = warning("claim-unused", "No container uses a claim of the pod: devices are held, and nobody sees them.")
RULES = (
    POD_CLAIM,
    CONTAINER_CLAIM,
    CONTAINER_REQUEST,
    NOT_FOUND,
    UNUSED,
)


_POD_SPECS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("v1", "Pod"): ("spec",),
    ("v1", "PodTemplate"): ("template", "spec"),
    ("v1", "ReplicationController"): ("spec", "template", "spec"),
    ("apps/v1", "Deployment"): ("spec", "template", "spec"),
    ("apps/v1", "ReplicaSet"): ("spec", "template", "spec"),
    ("apps/v1", "StatefulSet"): ("spec", "template", "spec"),
    ("apps/v1", "DaemonSet"): ("spec", "template", "spec"),
    ("batch/v1", "Job"): ("spec", "template", "spec"),
    ("batch/v1", "CronJob"): ("spec", "jobTemplate", "spec", "template", "spec"),
}
_OLD_FORM: Final = "source"
_STAND_INS: Final = {"name": STAND_IN}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of resourceClaims: a name in the pod for a claim, or for a claim made from a template."""

    path: str
    name: str
    claim: str
    template: str

    @property
    def kind(self) -> str:
        """The kind that it refers to."""
        return "ResourceClaim" if self.claim else "ResourceClaimTemplate"

    @property
    def field(self) -> str:
        """The path of the reference."""
        return f"{self.path}.{'resourceClaimName' if self.claim else 'resourceClaimTemplateName'}"


@dataclass(frozen=True, slots=True)
class Use:
    """An entry of a container's resources.claims. `request` is empty for all of the claim."""

    container: str
    path: str
    name: str
    request: str


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The claims of a pod, and their uses by containers. `problems` are malformed entries, by path."""

    claims: tuple[PodClaim, ...]
    uses: tuple[Use, ...]
    problems: tuple[tuple[str, str], ...]


def is_workload(source: Source) -> bool:
    """Whether the object is a pod or a workload that creates pods."""
    return (source.api_version, source.kind) in _POD_SPECS


def read_pod_spec(source: Source) -> PodSpec | None:
    """The pod spec of the object; None if it has none."""
    steps = _POD_SPECS.get((source.api_version, source.kind), ())
    spec: Any = source.value if steps else None
    for step in steps:
        spec = spec.get(step) if isinstance(spec, dict) else None
    if not isinstance(spec, dict):
        return None
    problems: list[tuple[str, str]] = []
    path = ".".join(steps)
    claims = [
        PodClaim(place, *decoded)
        for place, value in _items(spec, "resourceClaims", path)
        if (decoded := _decoded(value, place, _decode_claim, problems)) is not None
    ]
    uses = [
        Use(container, place, *names)
        for container, place, value in _container_uses(spec, path)
        if (names := _decoded(value, place, _decode_use, problems)) is not None
    ]
    return PodSpec(tuple(claims), tuple(uses), tuple(problems))


def _container_uses(spec: JSON, path: str) -> Iterator[tuple[str, str, Any]]:
    for field in ("initContainers", "containers"):
        for container, value in _items(spec, field, path):
            resources = value.get("resources") if isinstance(value, dict) else None
            if isinstance(resources, dict):
                for place, use in _items(resources, "claims", f"{container}.resources"):
                    yield container, place, use


def _items(value: JSON, field: str, path: str) -> Iterator[tuple[str, Any]]:
    """The items of a list, with their paths. Empty if there is no list."""
    found = value.get(field)
    for index, item in enumerate(found if isinstance(found, list) else []):
        yield f"{path}.{field}[{index}]", item


def _decoded(value: Any, path: str, decode: Callable[[Fields], T], problems: list[tuple[str, str]]) -> T | None:
    """The decoded entry; None if it has no name. Its mistakes are added to `problems`."""
    form = decode_all({"entry": value}, lambda wrapped: decode(Fields(wrapped).required_object("entry")), _STAND_INS)
    problems += [(path + found.path.removeprefix("entry"), found.problem) for found in form.errors]
    return None if form.is_mended("entry.name") else form.decoded


def _decode_claim(fields: Fields) -> tuple[str, str, str]:
    if _OLD_FORM in fields:
        raise fields.error(_OLD_FORM, "went away in Kubernetes 1.31: move what is in it one level up, beside 'name'")
    decoded = (
        fields.required_text("name"),
        fields.text("resourceClaimName"),
        fields.text("resourceClaimTemplateName"),
    )
    fields.finish()
    return decoded


def _decode_use(fields: Fields) -> tuple[str, str]:
    decoded = fields.required_text("name"), fields.text("request")
    fields.finish()
    return decoded


def check_pods(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the claims of a pod or of a pod template."""
    spec = read_pod_spec(subject.source)
    if spec is None:
        return
    yield from (Issue(POD_CLAIM, path, problem) for path, problem in spec.problems)
    yield from _repeated(spec)
    found = {one.name: _named(one, subject.source, context) for one in spec.claims}
    for one in spec.claims:
        if bool(one.claim) == bool(one.template):
            if not any(path.startswith(f"{one.path}.") for path, _ in spec.problems):  # a misspelt one of them
                problem = "exactly one of resourceClaimName and resourceClaimTemplateName must be set"
                yield Issue(POD_CLAIM, one.path, problem)
        elif not found[one.name]:
            yield Issue(NOT_FOUND, one.field, _nowhere(one, subject.source, context))
    yield from _uses(spec, found)
    yield from _unused(spec, found, context)


def _repeated(spec: PodSpec) -> Iterator[Issue]:
    seen: set[tuple[str, ...]] = set()
    for one in spec.claims:
        if (one.name,) in seen:
            yield Issue(POD_CLAIM, f"{one.path}.name", f"{one.name!r} is used twice: rename one")
        seen.add((one.name,))
    for use in spec.uses:
        if (use.container, use.name, use.request) in seen:
            yield Issue(POD_CLAIM, use.path, "the container has the same entry twice: remove one")
        seen.add((use.container, use.name, use.request))


def _uses(spec: PodSpec, found: dict[str, list[Subject]]) -> Iterator[Issue]:
    """Check that containers use claims and requests that exist."""
    claims = {one.name: one for one in spec.claims}
    for use in spec.uses:
        if use.name not in claims:
            problem = f"{use.name!r} is not in the pod's resourceClaims (there is {', '.join(claims) or 'none'})"
            yield Issue(CONTAINER_CLAIM, f"{use.path}.name", problem)
            continue
        specs = _specs(found[use.name])
        if use.request and specs and not any(use.request in one.requests for one in specs):
            one = claims[use.name]
            there = ", ".join(specs[0].requests) or "none"
            note = "; alternatives have no entry of their own" if "/" in use.request else ""
            problem = f"{use.request!r} is no request of {one.kind} {one.claim or one.template} (it has {there}{note})"
            yield Issue(CONTAINER_REQUEST, f"{use.path}.request", problem)


def _unused(spec: PodSpec, found: dict[str, list[Subject]], context: Context) -> Iterator[Issue]:
    """Check that containers use each claim. Devices of other drivers, such as networks, may be for the whole pod."""
    used = {one.name for one in spec.uses}
    for one in spec.claims:
        requirements = [each.value for claim in _specs(found[one.name]) for each in claim.requirements()]
        ours = any(context.catalog.of_class(each.device_class_name) for each in requirements)
        if one.name not in used and ours:
            problem = f"no container uses claim {one.name!r}: add it to a container's resources.claims, or remove it"
            yield Issue(UNUSED, one.path, problem)


def _named(claim: PodClaim, pod: Source, context: Context) -> list[Subject]:
    """The objects that the entry may refer to: more than one if files repeat a name."""
    name = claim.claim or claim.template
    return [
        one
        for one in context.subjects
        if one.source.kind == claim.kind and one.source.name == name and _together(one.source, pod)
    ]


def _together(one: Source, other: Source) -> bool:
    return one.namespace == other.namespace or not one.namespace or not other.namespace


def _specs(subjects: list[Subject]) -> list[ClaimSpec]:
    return [one.claim for one in subjects if one.claim is not None]


def _nowhere(claim: PodClaim, pod: Source, context: Context) -> str:
    name = claim.claim or claim.template
    others = [one.source for one in context.subjects if one.source.kind == claim.kind]
    elsewhere = next((one.namespace for one in others if one.name == name), None)
    if elsewhere is not None:
        return f"{claim.kind} {name} is in namespace {elsewhere}, the pod in {pod.namespace}: they must be in one"
    close = difflib.get_close_matches(name, [one.name for one in others if _together(one, pod)], n=1)
    hint = f"did you mean {close[0]!r}?" if close else "pass its file too, to have the pod checked against it"
    return f"there is no {claim.kind} {name} among the files; {hint}"
