# SPDX-License-Identifier: Apache-2.0
"""Which devices requests select: whether their classes and capacities exist, and what their CEL selectors do.

A selector has to be accepted by the API server, and is tried on the known devices.
"""

import difflib
from collections.abc import Iterator, Sequence

from ...kube.resource import Device, DeviceClass
from ...scheduler.cel import COST_LIMIT, MAX_BYTES, CompileError, Environment, compile_selector
from ..report import listed
from .catalog import CandidateDevice, Catalog, SelectorStep
from .finding import LintIssue, LintRule
from .subject import LintContext, Requirement

_CLOSE = 0.85
"""The likeness of a misspelt name. Classes of different NVIDIA drivers have half of their names in common."""
_VALUES = 6
_FOREIGN = CandidateDevice("another-driver.example.com", "pool", Device("device"))
"""A device of another driver."""


def check_class(class_: DeviceClass, context: LintContext) -> Iterator[LintIssue]:
    """Check the selectors of a class."""
    catalog = context.catalog
    yield from _expressions("spec", class_.selectors, context)
    others = list(_other_drivers(catalog.narrow(class_.selectors, (_FOREIGN,))))
    yield from others
    if catalog.devices and not others and not catalog.is_foreign(class_):  # some known devices are of another driver
        yield from _answers("spec", catalog.class_steps(class_), None, catalog)


def check_request(requirement: Requirement, context: LintContext) -> Iterator[LintIssue]:
    """Check that the class and the capacities exist that a request names, and its selectors."""
    name, known = requirement.value.device_class_name, context.catalog.classes
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)
        hint = f"did you mean {close[0]!r}?" if close else "pass its file too, or take devices from your cluster"
        problem = f"there is no DeviceClass {name!r} (known: {', '.join(sorted(known))}); {hint}"
        yield LintIssue(LintRule.UNKNOWN_CLASS, f"{requirement.path}.deviceClassName", problem)
    yield from _capacity(requirement, context)
    yield from _expressions(requirement.path, requirement.value.selectors, context)
    yield from _answers(requirement.path, context.catalog.steps(requirement.value), name, context.catalog)


def _capacity(requirement: Requirement, context: LintContext) -> Iterator[LintIssue]:
    candidates = context.catalog.candidates(requirement.value)
    for key, wanted in requirement.value.capacity_requests.items() if candidates else ():
        amounts = [known.device.capacity[key].value for known in candidates if key in known.device.capacity]
        if any(amount.value >= wanted.value for amount in amounts):
            continue
        if amounts:
            most = max(amounts, key=lambda amount: amount.value)
            problem = f"none of the {len(candidates)} known devices has {wanted} of it, the most is {most}"
        else:
            there = sorted({name for known in candidates for name in known.device.capacity})
            problem = f"none of the {len(candidates)} known devices has capacity {key!r} (there is {', '.join(there)})"
        yield LintIssue(LintRule.CAPACITY_NEVER_MET, f"{requirement.path}.capacity.requests[{key}]", problem)


def _expressions(path: str, expressions: Sequence[str], context: LintContext) -> Iterator[LintIssue]:
    """Check whether the API server accepts each expression in a new object."""
    environment = Environment(context.release, stored=False)
    for index, expression in enumerate(expressions):
        place = _place(path, index)
        size = len(expression.encode())
        if size > MAX_BYTES:
            yield LintIssue(
                LintRule.SELECTOR_REFUSED, place, f"is too long: {size} bytes, at most {MAX_BYTES} are accepted"
            )
            continue
        try:
            cost = compile_selector(expression, environment).max_cost
        except CompileError as refusal:
            hints = context.catalog.mistakes(expression)
            for issue in refusal.issues or (refusal,):
                yield LintIssue(
                    LintRule.SELECTOR_REFUSED,
                    place,
                    f"does not compile: {'; '.join((issue.message, *hints))}",
                    issue.offset,
                )
                hints = []
            continue
        if cost > COST_LIMIT:
            problem = f"is too complex: it may cost {cost}, more than {COST_LIMIT}; use fewer loops and functions"
            yield LintIssue(LintRule.SELECTOR_REFUSED, place, problem)


def _answers(path: str, steps: Sequence[SelectorStep], class_name: str | None, catalog: Catalog) -> Iterator[LintIssue]:
    """Check the results on the devices of a class (None: all). Each expression gets the devices that are left."""
    whose = "known" if class_name is None else f"known {class_name}"
    for index, step in enumerate(steps):
        if step.selector is None:
            continue
        if step.failed:
            yield _failure(_place(path, index), step, whose, catalog)
            continue
        unknown = step.selector.unknown_names(catalog.names_of(class_name))
        for name in unknown:
            yield LintIssue(LintRule.UNKNOWN_ATTRIBUTE, _place(path, index), name.message, name.offset)
        if not step.after and not unknown:
            yield from _never(_place(path, index), step, whose, catalog, narrowed=index > 0)


def _failure(place: str, step: SelectorStep, whose: str, catalog: Catalog) -> LintIssue:
    known, first = step.failed[0]
    count = f"{len(step.failed)} of {len(step.before)} {whose} devices"
    fix = "".join(f"; {hint}" for hint in catalog.mistakes(step.selector.expression)) if step.selector else ""
    if first.kind == "no_such_key" and "did you mean" not in first.message:
        others = _classes_with_all(step, catalog)
        fix = "; guard it with has(…) && …, or read it with .?NAME.orValue(…)"
        if others and len(step.failed) == len(step.before):
            fix = f"; devices of class {others[0]} have it"
    return LintIssue(
        LintRule.SELECTOR_FAILS,
        place,
        f"fails on {count}, such as {known}, and one failure makes the scheduler give up the pod: {first.message}{fix}",
        first.offset,
    )


def _never(place: str, step: SelectorStep, whose: str, catalog: Catalog, *, narrowed: bool) -> Iterator[LintIssue]:
    assert step.selector is not None
    part, saw = catalog.culprit(step)
    if not catalog.is_conclusive(saw):
        return
    left = " that the selectors before it leave" if narrowed else ""
    values = "; ".join(f"{name} is {listed(list(seen), _VALUES)}" for name, seen in saw.items())
    who = f"{len(step.before)} {whose} devices ({catalog.where}){left}"
    offset = step.selector.expression.find(part)
    yield LintIssue(
        LintRule.SELECTOR_NEVER_TRUE,
        place,
        f"is true for none of the {who}: {part} is false, {values or 'always'}",
        offset if offset >= 0 else None,
    )


def _classes_with_all(step: SelectorStep, catalog: Catalog) -> list[str]:
    """The classes whose devices have everything that the expression reads."""
    assert step.selector is not None
    return [
        name
        for name in catalog.classes
        if catalog.of_class(name) and not step.selector.unknown_names(catalog.names_of(name))
    ]


def _other_drivers(steps: Sequence[SelectorStep]) -> Iterator[LintIssue]:
    """Check a class on devices of other drivers. If it fails on one, no pod with a claim of this class is scheduled."""
    for index, step in enumerate(steps):
        for _, failure in step.failed:
            problem = "fails on devices of other drivers: begin with device.driver == 'NAME OF THE DRIVER' &&"
            yield LintIssue(LintRule.CLASS_WITHOUT_DRIVER, _place("spec", index), problem, failure.offset)


def _place(path: str, index: int) -> str:
    return f"{path}.selectors[{index}].cel.expression"
