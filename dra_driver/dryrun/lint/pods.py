# SPDX-License-Identifier: Apache-2.0
"""Pods and the workloads that contain a pod template: the claims that they name and that their containers use."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from ...kube.resource.codec import DecodeError, Fields
from ...scheduler.pods import has_form, pod_spec_errors
from ..documents import JSON, Document
from ..groups import ObjectPods, PodGroup, ReferencedObjects, joined, key_of, pods_of
from ..kinds import KINDS
from ..podforms import FORMS
from ..status import Note
from .finding import LintIssue, LintRule
from .subject import STAND_IN, ClaimSpec, LintContext, Subject, decode_all, is_unknown_field, subject_of

_OLD_FORM: Final = "source"
_CLAIM_OF_POD: Final = re.compile(r"\b(resourceClaims|resources\.claims)\[")
"""Places in pods whose form is checked with their meaning."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PodClaimEntry:
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

    path: str
    name: str
    request: str

    @property
    def key(self) -> tuple[str, ...]:
        """The list that it is in, and what it says there."""
        return self.path.rpartition("[")[0], self.name, self.request


def is_workload(document: Document) -> bool:
    """Whether the object is a pod or a workload that creates pods."""
    return key_of(document.value) in KINDS or bool(_read(document, ReferencedObjects()).groups)


def notes_of(document: Document, library: ReferencedObjects) -> Iterator[Note]:
    """The parts of an object's pods that are not checked."""
    reading = _read(document, library)
    texts = [*reading.unknown]
    for group in reading.groups:
        if not group.spec or key_of(document.value) not in KINDS:
            texts += group.unknown
    yield from (document.note(text) for text in dict.fromkeys(texts))


def _read(document: Document, library: ReferencedObjects) -> ObjectPods:
    """The pods of an object. Fields that are missing are no mistakes: the object may be a patch."""
    try:
        return pods_of(document.value, library, FORMS)
    except DecodeError:
        return ObjectPods()


def _decode_claim(fields: Fields, path: str) -> PodClaimEntry:
    if _OLD_FORM in fields:
        raise fields.error(_OLD_FORM, "went away in Kubernetes 1.31: move what is in it one level up, beside 'name'")
    claim, template = fields.text("resourceClaimName"), fields.text("resourceClaimTemplateName")
    decoded = PodClaimEntry(path, fields.required_text("name"), claim, template)
    fields.finish()
    return decoded


def _decode_use(fields: Fields, path: str) -> Use:
    decoded = Use(path, fields.required_text("name"), fields.text("request"))
    fields.finish()
    return decoded


def _decoded(
    value: Any, field: str, path: str, decode: Callable[[Fields, str], T], problems: list[LintIssue]
) -> Iterator[T]:
    """The entries of a list that have a name. The mistakes of all entries are added to `problems`."""
    for place, entry in _items(value, field, path):
        form = decode_all({"entry": entry}, partial(_inside, decode, place), {"name": STAND_IN})
        mistakes = ((place + error.path.removeprefix("entry"), error.problem) for error in form.errors)
        problems += [LintIssue(LintRule.POD_CLAIM, path, problem) for path, problem in mistakes]
        if form.decoded is not None and not form.is_mended("entry.name"):
            yield form.decoded


def _inside(decode: Callable[[Fields, str], T], place: str, wrapped: JSON) -> T:
    return decode(Fields(wrapped).required_object("entry"), place)


def _items(value: Any, field: str, path: str) -> Iterator[tuple[str, Any]]:
    """The items of a list, with their paths. Empty if there is no list."""
    found = value.get(field) if isinstance(value, dict) else None
    for index, item in enumerate(found if isinstance(found, list) else []):
        yield f"{joined(path, field)}[{index}]", item


def check_pods(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check the claims of pods and of pod templates."""
    document = subject.document
    try:
        groups = pods_of(document.value, context.library, FORMS).groups
    except DecodeError as error:
        if not error.problem.endswith("missing"):  # the object may be a patch
            yield LintIssue(LintRule.SCHEMA, error.path, error.problem)
        return
    issues: dict[LintIssue, None] = {}
    for group in groups:
        found = [*_check_spec(group, subject, context)]
        if not has_form(document.value):
            found += _form_issues(group.spec)
        issues |= dict.fromkeys(replace(issue, path=group.place(issue.path)) for issue in found)
    yield from issues


def _form_issues(spec: JSON) -> Iterator[LintIssue]:
    """Unknown fields and wrong types of a pod of a kind whose other fields are not checked."""
    for error in pod_spec_errors(spec):
        if not _CLAIM_OF_POD.search(error.path):
            rule = LintRule.UNKNOWN_FIELD if is_unknown_field(error) else LintRule.SCHEMA
            yield LintIssue(rule, error.path, error.problem)


def _check_spec(group: PodGroup, subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check the spec of pods. The paths are those in the spec."""
    spec = group.spec
    problems: list[LintIssue] = []
    claims = list(_decoded(spec, "resourceClaims", "", _decode_claim, problems))
    containers = (item for field in ("initContainers", "containers") for item in _items(spec, field, ""))
    uses = [
        use
        for path, container in containers
        if isinstance(container, dict)
        for use in _decoded(container.get("resources"), "claims", f"{path}.resources", _decode_use, problems)
    ]
    yield from problems
    yield from _repeated(claims, uses)
    document = subject.document
    made = [subject_of(replace(document, value=template)) for template in group.templates]
    found = {claim.name: _named(claim, document, context, made) for claim in claims}
    for claim in claims:
        if bool(claim.claim) == bool(claim.template):
            if not any(problem.path.startswith(f"{claim.path}.") for problem in problems):  # a misspelt one of them
                problem = "exactly one of resourceClaimName and resourceClaimTemplateName must be set"
                yield LintIssue(LintRule.POD_CLAIM, claim.path, problem)
        elif not found[claim.name]:
            yield LintIssue(LintRule.CLAIM_NOT_FOUND, claim.field, _nowhere(claim, document, context))
    yield from _uses(claims, uses, found)
    yield from _unused(claims, uses, found, context)


def _repeated(claims: Iterable[PodClaimEntry], uses: Iterable[Use]) -> Iterator[LintIssue]:
    seen: set[object] = set()
    for claim in claims:
        if claim.name in seen:
            yield LintIssue(LintRule.POD_CLAIM, f"{claim.path}.name", f"{claim.name!r} is used twice: rename one")
        seen.add(claim.name)
    for use in uses:
        if use.key in seen:
            yield LintIssue(LintRule.POD_CLAIM, use.path, "the container has the same entry twice: remove one")
        seen.add(use.key)


def _uses(
    claims: Iterable[PodClaimEntry], uses: Iterable[Use], found: Mapping[str, list[Subject]]
) -> Iterator[LintIssue]:
    """Check that containers use claims and requests that exist."""
    known = {claim.name: claim for claim in claims}
    for use in uses:
        if use.name not in known:
            problem = f"{use.name!r} is not in the pod's resourceClaims (there is {', '.join(known) or 'none'})"
            yield LintIssue(LintRule.CONTAINER_NAMES_NO_CLAIM, f"{use.path}.name", problem)
            continue
        specs = _specs(found[use.name])
        if use.request and specs and not any(use.request in spec.requests for spec in specs):
            claim = known[use.name]
            there = ", ".join(specs[0].requests) or "none"
            note = "; alternatives have no entry of their own" if "/" in use.request else ""
            problem = (
                f"{use.request!r} is no request of {claim.kind} {claim.claim or claim.template} (it has {there}{note})"
            )
            yield LintIssue(LintRule.CONTAINER_NAMES_NO_REQUEST, f"{use.path}.request", problem)


def _unused(
    claims: Iterable[PodClaimEntry], uses: Iterable[Use], found: Mapping[str, list[Subject]], context: LintContext
) -> Iterator[LintIssue]:
    """Check that containers use each claim. Devices of other drivers, such as networks, may be for the whole pod."""
    used = {use.name for use in uses}
    for claim in claims:
        requirements = [each.value for claim in _specs(found[claim.name]) for each in claim.requirements()]
        ours = any(context.catalog.of_class(each.device_class_name) for each in requirements)
        if claim.name not in used and ours:
            problem = f"no container uses claim {claim.name!r}: add it to a container's resources.claims, or remove it"
            yield LintIssue(LintRule.CLAIM_UNUSED, claim.path, problem)


def _named(claim: PodClaimEntry, pod: Document, context: LintContext, made: Iterable[Subject]) -> list[Subject]:
    """The objects that the entry may refer to: more than one if files repeat a name. `made` are templates that are made
    with the pod.
    """
    name = claim.claim or claim.template
    own = [subject for subject in made if subject.document.kind == claim.kind and subject.document.own_name == name]
    return own or [
        subject
        for subject in context.subjects
        if subject.document.kind == claim.kind
        and subject.document.own_name == name
        and _together(subject.document, pod)
    ]


def _together(first: Document, second: Document) -> bool:
    namespaces = first.own_namespace, second.own_namespace
    return namespaces[0] == namespaces[1] or not all(namespaces)


def _specs(subjects: list[Subject]) -> list[ClaimSpec]:
    return [subject.claim for subject in subjects if subject.claim is not None]


def _nowhere(claim: PodClaimEntry, pod: Document, context: LintContext) -> str:
    name = claim.claim or claim.template
    others = [subject.document for subject in context.subjects if subject.document.kind == claim.kind]
    elsewhere = next((other.own_namespace for other in others if other.own_name == name), None)
    if elsewhere is not None:
        return f"{claim.kind} {name} is in namespace {elsewhere}, the pod in {pod.own_namespace}: they must be in one"
    close = difflib.get_close_matches(name, [other.own_name for other in others if _together(other, pod)], n=1)
    hint = f"did you mean {close[0]!r}?" if close else "pass its file too, to have the pod checked against it"
    return f"there is no {claim.kind} {name} among the files; {hint}"
