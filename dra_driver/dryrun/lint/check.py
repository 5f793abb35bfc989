# SPDX-License-Identifier: Apache-2.0
"""All rules, applied to all objects: a pure function from the read objects to findings."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from ...kube.resource import DeviceClass
from ..documents import Read
from ..groups import Elsewhere, ReferencedObjects, only_files
from ..status import Note
from . import claims, configs, domains, form, pods, selectors, taintrules
from .catalog import Catalog, KnownObjects
from .domains import is_domain, made_templates
from .finding import LintFinding, LintIssue
from .pods import is_workload, notes_of
from .reading import duplicate_keys, finding_of, findings_of_files
from .subject import ClaimSpec, LintContext, Requirement, Subject, is_device_api, subject_of

T = TypeVar("T")
Check = Callable[[T, LintContext], Iterator[LintIssue]]

_OF_FORM: Final[tuple[Check[Subject], ...]] = (
    form.check_version,
    form.check_form,
    form.check_identity,
    form.check_gates,
)
"""Checks of the text of the file: versions, kinds and fields."""
_OF_OBJECT: Final[tuple[Check[Subject], ...]] = (
    domains.check_domains,
    form.check_slice,
    taintrules.check_taint_rule,
    claims.check_name,
    pods.check_pods,
)
_OF_CLASS: Final[tuple[Check[DeviceClass], ...]] = (claims.check_class, configs.check_class, selectors.check_class)
_OF_CLAIM: Final[tuple[Check[ClaimSpec], ...]] = (claims.check_claim, configs.check_claim, domains.check_channels)
_OF_REQUEST: Final[tuple[Check[Requirement], ...]] = (claims.check_request, selectors.check_request)


@dataclass(frozen=True, slots=True)
class Result:
    """The findings, in the order of files and lines, and the number of checked objects.

    `left` is the number of objects that were not checked because of Ctrl-C. `unknown` are notes about objects that are
    not checked, or not as a whole.
    """

    findings: tuple[LintFinding, ...]
    files: int
    checked: int
    passed_over: int
    left: int = 0
    unknown: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class LintBasis:
    """What objects are checked against: a Kubernetes release, and devices and classes that are `known` from `where`.

    With `models`, the known devices are examples of their models. Objects to which workloads refer are looked for
    `elsewhere`, too, whose exceptions are raised.
    """

    release: str
    known: KnownObjects
    where: str
    models: bool = False
    elsewhere: Elsewhere = only_files


def check(reading: Read, basis: LintBasis, tell: Callable[[int, int], None] = lambda *_: None) -> Result:
    """The findings about the read objects.

    `tell` is called with the number of checked objects and of all. After Ctrl-C, the result is that of these objects.
    """
    subjects = tuple(subject_of(document) for document in reading.documents)
    given = [subject.decoded for subject in subjects if isinstance(subject.decoded, DeviceClass)]
    # Classes among the files replace those of the same name that are known from elsewhere.
    everything = (*subjects, *made_templates(subjects))
    library = ReferencedObjects((document.value for document in reading.documents), basis.elsewhere)
    catalog = Catalog(basis.known, given, basis.release, basis.where, models=basis.models)
    context = LintContext(basis.release, catalog, everything, library)
    concerned = [subject for subject in subjects if _is_checked(subject)]
    findings = [*findings_of_files(reading.problems)]
    checked = 0
    with suppress(KeyboardInterrupt):
        for subject in concerned:
            findings += _findings(subject, context)
            checked += 1
            tell(checked, len(concerned))
    files = [*(document.file for document in reading.documents), *(finding.file for finding in findings)]
    order = {file: number for number, file in enumerate(dict.fromkeys(files))}
    findings.sort(key=lambda finding: (order[finding.file], finding.line, finding.column))
    others = len(subjects) - len(concerned)
    unknown = tuple(note for document in reading.documents for note in notes_of(document, library))
    return Result(tuple(findings), reading.files, checked, others, len(concerned) - checked, unknown)


def _findings(subject: Subject, context: LintContext) -> Iterator[LintFinding]:
    issues = [issue for check_form in _OF_FORM for issue in check_form(subject, context)]
    issues += [issue for issue in _of_meaning(subject, context) if subject.is_news(issue)]
    yield from duplicate_keys(subject.document)
    yield from (finding_of(subject.document, issue) for issue in issues)


def _of_meaning(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """The issues of an object, and if it is a class, a claim or a template, of what it consists of."""
    for of_object in _OF_OBJECT:
        yield from of_object(subject, context)
    if isinstance(subject.decoded, DeviceClass):
        for of_class in _OF_CLASS:
            yield from of_class(subject.decoded, context)
    claim = subject.claim
    if claim is None:
        return
    for of_claim in _OF_CLAIM:
        yield from of_claim(claim, context)
    for requirement in claim.requirements():
        for of_request in _OF_REQUEST:
            yield from of_request(requirement, context)


def _is_checked(subject: Subject) -> bool:
    return is_device_api(subject.document) or is_workload(subject.document) or is_domain(subject.document)
