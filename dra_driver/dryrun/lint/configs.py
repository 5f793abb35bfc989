# SPDX-License-Identifier: Apache-2.0
"""Opaque configurations for the two drivers: kind, fields, and whether a device of the claim can take them."""

import json
from collections.abc import Iterable, Iterator
from functools import partial

from ...config import (
    API_VERSION,
    DEVICE_TYPES,
    DeviceConfig,
    decode_config,
    decode_domain_config,
    ineffective,
    misfit,
    use_other,
)
from ...domains.mistakes import mistake
from ...domains.names import DRIVER as DOMAIN_DRIVER
from ...kube.resource import DeviceClass, OpaqueConfiguration
from ...kube.resource.codec import DecodeError
from ...kube.resource.limits import OPAQUE_PARAMETERS_BYTES
from ...kube.resource.names import is_driver_name
from ...names import DRIVER_NAME
from .catalog import CandidateDevice
from .claims import request_names
from .finding import LintIssue, LintRule, Severity
from .subject import ClaimSpec, LintContext, decode_all

_STAND_INS = {"apiVersion": API_VERSION}


def check_class(class_: DeviceClass, context: LintContext) -> Iterator[LintIssue]:
    """Check the configurations of a class."""
    for index, opaque in enumerate(class_.config):
        path = f"spec.config[{index}].opaque"
        yield from _size(opaque, path)
        yield from _opaque(opaque, path, class_.metadata.name, of_class=True)


def check_claim(claim: ClaimSpec, context: LintContext) -> Iterator[LintIssue]:
    """Check the configurations of a claim."""
    for path, names, opaque in claim.configs():
        yield from request_names(claim, names, f"{path}.requests", LintRule.CONFIG_NAMES_NO_REQUEST)
        yield from _size(opaque, f"{path}.opaque")
        problems = list(_opaque(opaque, f"{path}.opaque", claim.name))
        yield from problems
        if all(problem.rule.severity is Severity.WARNING for problem in problems):
            yield from _fits(claim, names, opaque, path, context)


def _size(opaque: OpaqueConfiguration, path: str) -> Iterator[LintIssue]:
    size = len(json.dumps(opaque.parameters, separators=(",", ":"), default=str).encode())
    if size > OPAQUE_PARAMETERS_BYTES:
        problem = f"has {size} bytes, at most {OPAQUE_PARAMETERS_BYTES} are accepted"
        yield LintIssue(LintRule.TOO_LARGE, f"{path}.parameters", problem)


def _opaque(opaque: OpaqueConfiguration, path: str, owner: str, *, of_class: bool = False) -> Iterator[LintIssue]:
    parameters = f"{path}.parameters"
    if not is_driver_name(opaque.driver):
        yield LintIssue(LintRule.INVALID_CONFIG, f"{path}.driver", f"{opaque.driver!r} is not the name of a driver")
    elif opaque.driver == DRIVER_NAME:
        form = decode_all(dict(opaque.parameters), partial(decode_config, of_class=of_class), _STAND_INS)
        yield from _invalid(form.errors, parameters)
        if form.decoded is not None and not form.errors and (doubt := ineffective(form.decoded, parameters)):
            yield LintIssue(LintRule.CONFIG_WITHOUT_EFFECT, doubt.path, doubt.problem)
    elif opaque.driver == DOMAIN_DRIVER:
        found = decode_all(dict(opaque.parameters), decode_domain_config, _STAND_INS)
        yield from _invalid(found.errors, parameters)
        if found.decoded is not None and not found.errors and (doubt := mistake(found.decoded, owner, parameters)):
            yield LintIssue(LintRule.CONFIG_DOMAIN, doubt.path, doubt.problem)


def _invalid(errors: Iterable[DecodeError], parameters: str) -> Iterator[LintIssue]:
    for problem in errors:
        yield LintIssue(
            LintRule.INVALID_CONFIG, f"{parameters}.{problem.path}" if problem.path else parameters, problem.problem
        )


def _fits(
    claim: ClaimSpec, names: tuple[str, ...], opaque: OpaqueConfiguration, path: str, context: LintContext
) -> Iterator[LintIssue]:
    """Check that a request that it names can get a device that reads it. Without names, it is for all requests."""
    requirements = claim.covered(names)
    found = [(requirement, context.catalog.candidates(requirement.value)) for requirement in requirements]
    if not found or not all(candidates for _, candidates in found):
        return  # something is not known, so it may be for that
    drivers = sorted({known.driver for _, candidates in found for known in candidates})
    if opaque.driver not in drivers:
        problem = (
            f"{opaque.driver!r} is not the driver of any device it is for ({', '.join(drivers)}): no driver reads it"
        )
        yield LintIssue(LintRule.CONFIG_UNUSED, f"{path}.opaque.driver", problem)
    if opaque.driver != DRIVER_NAME:
        return
    config = decode_config(opaque.parameters)
    kinds_of = {requirement.name: _kinds(candidates) for requirement, candidates in found}
    others = {name: kinds for name, kinds in kinds_of.items() if type(config) not in kinds}
    if names and others:
        request, kinds = next(iter(others.items()))
        yield LintIssue(LintRule.CONFIG_KIND, f"{path}.opaque.parameters.kind", misfit(request, config, kinds))
    elif len(others) == len(found):
        kind = type(config).__name__
        kinds = [device_type for device_type in DEVICE_TYPES if any(device_type in taken for taken in others.values())]
        problem = f"the claim has no request for devices that take a {kind}: {use_other(kinds)}"
        yield LintIssue(LintRule.CONFIG_UNUSED, f"{path}.opaque.parameters.kind", problem)


def _kinds(candidates: Iterable[CandidateDevice]) -> list[type[DeviceConfig]]:
    """The kinds of configurations that these devices take."""
    types = {known.device.attributes.get("type") for known in candidates}
    return [kind for kind, names in DEVICE_TYPES.items() if not types.isdisjoint(names)]
