# SPDX-License-Identifier: Apache-2.0
"""Constraints: the requests that they name, and the attributes that they compare."""

import difflib
from collections.abc import Iterator

from ...resource import DeviceConstraint
from ...resource.names import is_driver_name, is_qualified_name
from .catalog import Known
from .finding import Issue, Rule, error, warning
from .mend import STAND_IN
from .subject import ClaimSpec, Context, Subject

CONSTRAINT_REQUEST = error("constraint-names-no-request", "A constraint names a request that the claim does not have.")
CONSTRAINT_ATTRIBUTE = error("constraint-attribute", "A constraint has not exactly one well-formed attribute.")
CONSTRAINT_UNMET = warning("constraint-never-met", "No known device that a request selects has the attribute.")
RULES = (CONSTRAINT_REQUEST, CONSTRAINT_ATTRIBUTE, CONSTRAINT_UNMET)


def check_constraints(subject: Subject, context: Context) -> Iterator[Issue]:
    """The constraints of a claim."""
    claim = subject.claim
    for index, constraint in enumerate(claim.devices.constraints if claim is not None else ()):
        assert claim is not None
        path = f"{claim.path}.constraints[{index}]"
        yield from request_names(claim, constraint.requests, f"{path}.requests", CONSTRAINT_REQUEST)
        malformed = list(_form(constraint, path))
        yield from malformed or _unmet(claim, constraint, path, context)


def request_names(claim: ClaimSpec, names: tuple[str, ...], path: str, rule: Rule) -> Iterator[Issue]:
    """Whether each name is that of a request, or `request/alternative`, and there once."""
    known = {*claim.requests, *(one.name for one in claim.requirements() if STAND_IN not in one.name.split("/"))}
    for index, name in enumerate(names):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            there = f"there is {', '.join(sorted(known))}" if known else "it has none"
            hint = f"; did you mean {close[0]!r}?" if close else f" ({there})"
            yield Issue(rule, f"{path}[{index}]", f"{name!r} is no request of the claim{hint}")
        elif name in names[:index]:
            yield Issue(rule, f"{path}[{index}]", f"{name!r} is named twice: remove one")


def _form(constraint: DeviceConstraint, path: str) -> Iterator[Issue]:
    attributes = {"matchAttribute": constraint.match_attribute, "distinctAttribute": constraint.distinct_attribute}
    given = {field: name for field, name in attributes.items() if name is not None}
    if len(given) != 1:
        yield Issue(CONSTRAINT_ATTRIBUTE, path, "must have exactly one of matchAttribute and distinctAttribute")
    for field, name in given.items():
        domain, slash, _ = name.partition("/")
        if not slash or not is_qualified_name(name) or not is_driver_name(domain):
            problem = f"{name!r} must be DOMAIN/ATTRIBUTE, such as gpu.nvidia.com/parentUUID"
            yield Issue(CONSTRAINT_ATTRIBUTE, f"{path}.{field}", problem)


def _unmet(claim: ClaimSpec, constraint: DeviceConstraint, path: str, context: Context) -> Iterator[Issue]:
    """A device without the attribute meets no constraint on it."""
    field = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    for one in claim.covered(constraint.requests):
        candidates = context.catalog.candidates(one.value)
        if not candidates or any(_has(device, name) for device in candidates):
            continue
        published = {
            key if "/" in key else f"{each.driver}/{key}" for each in candidates for key in each.device.attributes
        }
        # Compared without their domains, which would make all of them look alike.
        known = {key.rpartition("/")[2].lower(): key for key in sorted(published)}
        close = difflib.get_close_matches(name.rpartition("/")[2].lower(), known, n=1)
        hint = f"; did you mean {known[close[0]]!r}?" if close else ""
        yield Issue(
            CONSTRAINT_UNMET,
            f"{path}.{field}",
            f"none of the {len(candidates)} known devices that request {one.name!r} selects has"
            f" attribute {name!r}: no device will do{hint}",
        )


def _has(known: Known, name: str) -> bool:
    domain, _, identifier = name.partition("/")
    return name in known.device.attributes or (domain == known.driver and identifier in known.device.attributes)
