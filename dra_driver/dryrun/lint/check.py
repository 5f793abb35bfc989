# SPDX-License-Identifier: Apache-2.0
"""All rules, applied to all objects: a pure function from the read objects to findings."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ...resource import DeviceClass
from ...resource.codec import Decoded
from . import claims, configs, domains, form, pods, selectors, source
from .catalog import Catalog, Origin
from .domains import is_domain, made_templates
from .finding import Issue, LintFinding, Rule
from .pods import is_workload
from .source import Reading
from .subject import Context, Subject, is_device_api, subject_of

Check = Callable[[Subject, Context], Iterator[Issue]]

RULES: Final[tuple[Rule, ...]] = tuple(
    rule for module in (source, form, claims, configs, domains, selectors, pods) for rule in module.RULES
)
"""Every rule, in the order of the documentation."""

_OF_FORM: Final[tuple[Check, ...]] = (
    form.check_version,
    form.check_form,
    form.check_identity,
    form.check_gates,
)
"""Checks of the text of the file: versions, kinds and fields."""
_OF_MEANING: Final[tuple[Check, ...]] = (
    domains.check_domains,
    form.check_slice,
    claims.check_names,
    claims.check_requests,
    claims.check_extended_resource,
    claims.check_limits,
    claims.check_constraints,
    configs.check_configs,
    domains.check_channels,
    selectors.check_classes,
    selectors.check_selectors,
    pods.check_pods,
)


@dataclass(frozen=True, slots=True)
class Result:
    """The findings, in the order of files and lines, and the number of checked objects.

    `left` is the number of objects that were not checked because of Ctrl-C.
    """

    findings: tuple[LintFinding, ...]
    files: int
    checked: int
    passed_over: int
    left: int = 0


def check(
    reading: Reading,
    known: Iterable[Decoded],
    release: str,
    origin: Origin,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Result:
    """The findings about the read objects. `known` are slices and classes from elsewhere, named by `origin`.

    `tell` is called with the number of checked objects and of all. After Ctrl-C, the result is that of these objects.
    """
    subjects = tuple(subject_of(one) for one in reading.sources)
    given = [one.decoded for one in subjects if isinstance(one.decoded, DeviceClass)]
    # Classes among the files replace those of the same name that are known from elsewhere.
    everything = (*subjects, *made_templates(subjects))
    context = Context(release, Catalog([*known, *given], release, origin), everything)
    concerned = [one for one in subjects if _is_checked(one)]
    findings = [*reading.findings]
    checked = 0
    with suppress(KeyboardInterrupt):
        for one in concerned:
            findings += _findings(one, context)
            checked += 1
            tell(checked, len(concerned))
    files = [*(one.file for one in reading.sources), *(one.file for one in findings)]
    order = {file: number for number, file in enumerate(dict.fromkeys(files))}
    findings.sort(key=lambda one: (order[one.file], one.line, one.column))
    others = len(subjects) - len(concerned)
    return Result(tuple(findings), reading.files, checked, others, len(concerned) - checked)


def _findings(subject: Subject, context: Context) -> Iterator[LintFinding]:
    issues = [issue for one in _OF_FORM for issue in one(subject, context)]
    issues += [issue for one in _OF_MEANING for issue in one(subject, context) if subject.is_news(issue)]
    yield from subject.source.duplicate_keys()
    yield from (subject.source.finding(issue) for issue in issues)


def _is_checked(subject: Subject) -> bool:
    return is_device_api(subject.source) or is_workload(subject.source) or is_domain(subject.source)
