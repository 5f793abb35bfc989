# SPDX-License-Identifier: Apache-2.0
"""Whether the claims that pods name are there, and what containers use of them."""

import difflib
from collections.abc import Iterator

from .finding import Issue, error, warning
from .podspecs import PodClaim, PodSpec, read_pod_spec
from .source import Source
from .subject import ClaimSpec, Context, Subject

POD_CLAIM = error("pod-claim", "A pod's claim, or a container's use of one, is not what the API server takes.")
CONTAINER_CLAIM = error("container-names-no-claim", "A container uses a claim that is not in resourceClaims.")
CONTAINER_REQUEST = error("container-names-no-request", "A container uses a request that the claim does not have.")
NOT_FOUND = warning("claim-not-found", "The ResourceClaim or ResourceClaimTemplate of a pod is not among the files.")
UNUSED = warning("claim-unused", "No container uses a claim of the pod: devices are held, and nobody sees them.")
RULES = (POD_CLAIM, CONTAINER_CLAIM, CONTAINER_REQUEST, NOT_FOUND, UNUSED)


def check_pods(subject: Subject, context: Context) -> Iterator[Issue]:
    """The claims of a pod, or of a template for pods."""
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
    """What containers use: a claim of the pod, all of it or one request."""
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
    """Devices of other drivers may be for the pod as a whole, as network interfaces are."""
    used = {one.name for one in spec.uses}
    for one in spec.claims:
        requirements = [each.value for claim in _specs(found[one.name]) for each in claim.requirements()]
        ours = any(context.catalog.of_class(each.device_class_name) for each in requirements)
        if one.name not in used and ours:
            problem = f"no container uses claim {one.name!r}: add it to a container's resources.claims, or remove it"
            yield Issue(UNUSED, one.path, problem)


def _named(claim: PodClaim, pod: Source, context: Context) -> list[Subject]:
    """The objects that the entry may refer to; more than one where files repeat a name."""
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
