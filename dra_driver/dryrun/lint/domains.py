# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains: their fields, the claim templates that the cluster controller makes for them, and channels."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final

from ...domains.names import CHANNEL_CLASS, DRIVER
from ...domains.objects import COMPUTE_DOMAINS, ComputeDomain, decode_domain
from ...kube.resource.names import is_subdomain
from ..documents import Document
from ..domains import KIND, template_of
from .claims import not_a_subdomain
from .finding import LintIssue, LintRule
from .subject import STAND_IN, ClaimSpec, Form, LintContext, Subject, decode_all, is_unknown_field, subject_of

_NAME: Final = "spec.channel.resourceClaimTemplate.name"
_GROUP: Final = COMPUTE_DOMAINS.group
_STAND_INS: Final = {"spec": {}, "channel": {}, "resourceClaimTemplate": {}, "name": STAND_IN}


def is_domain(document: Document) -> bool:
    """Whether the object is a ComputeDomain, of any version."""
    return document.kind == KIND and document.api_version.partition("/")[0] == _GROUP


def made_templates(subjects: Iterable[Subject]) -> list[Subject]:
    """The claim templates that would be made for the ComputeDomains, in the places of these."""
    return [
        subject_of(replace(subject.document, value=template_of(domain)))
        for subject in subjects
        if is_domain(subject.document)
        and (domain := _form(subject.document).decoded) is not None
        and domain.template != STAND_IN
    ]


def check_domains(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check a ComputeDomain."""
    if not is_domain(subject.document):
        return
    if subject.document.api_version != COMPUTE_DOMAINS.api_version:
        yield LintIssue(LintRule.SCHEMA, "apiVersion", f"must be {COMPUTE_DOMAINS.api_version}")
    form = _form(subject.document)
    for problem in form.errors:
        yield LintIssue(
            LintRule.UNKNOWN_FIELD if is_unknown_field(problem) else LintRule.SCHEMA, problem.path, problem.problem
        )
    domain = form.decoded
    if domain is None:
        return
    if domain.num_nodes:
        yield LintIssue(
            LintRule.DOMAIN_NUM_NODES,
            "spec.numNodes",
            "is deprecated, and no pod waits for this number of nodes: remove it",
        )
    if domain.template == STAND_IN:
        return
    if not is_subdomain(domain.template):
        yield LintIssue(LintRule.INVALID_NAME, _NAME, not_a_subdomain(domain.template))
    yield from _taken(subject, domain, context)


def _taken(subject: Subject, domain: ComputeDomain, context: LintContext) -> Iterator[LintIssue]:
    """Check that no earlier ComputeDomain names the same template, and that no other object is one of this name."""
    namespace = subject.document.own_namespace
    near = [neighbour for neighbour in context.subjects if neighbour.document.own_namespace == namespace]
    for earlier in takewhile(lambda other: other is not subject, near):
        other = _form(earlier.document).decoded if is_domain(earlier.document) else None
        if other is not None and other.template == domain.template and other.name != domain.name:
            problem = f"is also the template of ComputeDomain {other.name}: each ComputeDomain needs its own"
            yield LintIssue(LintRule.DOMAIN_TEMPLATE_TAKEN, _NAME, problem)
            return
    for neighbour in near:
        classes = (
            [each.value.device_class_name for each in neighbour.claim.requirements()]
            if neighbour.claim is not None
            else ()
        )
        named = (neighbour.document.kind, neighbour.document.own_name) == ("ResourceClaimTemplate", domain.template)
        if named and CHANNEL_CLASS not in classes:
            problem = "is the name of a template among the files, which the controller does not replace"
            yield LintIssue(LintRule.DOMAIN_TEMPLATE_TAKEN, _NAME, f"{problem}: choose another name")


def check_channels(claim: ClaimSpec, context: LintContext) -> Iterator[LintIssue]:
    """Check that requests for channels name a ComputeDomain."""
    configured = [names for _, names, opaque in claim.configs() if opaque.driver == DRIVER]
    for requirement in claim.requirements():
        named = (
            not names or {requirement.name, requirement.name.partition("/")[0]} & set(names) for names in configured
        )
        if requirement.value.device_class_name == CHANNEL_CLASS and not any(named):
            problem = "has no ComputeDomainChannelConfig: use the claim template that a ComputeDomain names"
            yield LintIssue(
                LintRule.CHANNEL_WITHOUT_DOMAIN, requirement.path, f"request {requirement.name!r} {problem}"
            )


def _form(document: Document) -> Form[ComputeDomain]:
    return decode_all(document.value, partial(decode_domain, strict=True), _STAND_INS)
