# SPDX-License-Identifier: Apache-2.0
"""Opaque configurations for the two drivers: kind, fields, and whether a device of the claim can take them."""

from collections.abc import Iterable, Iterator
from functools import partial

from ... import DRIVER_NAME
from ...computedomains import DRIVER as DOMAIN_DRIVER
from ...computedomains.mistakes import mistake
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
from ...resource import DeviceClass, OpaqueConfiguration
from ...resource.codec import DecodeError
from ...resource.names import is_driver_name
from .catalog import Known
from .claims import request_names
from .finding import Issue, Severity, error, warning
from .subject import ClaimSpec, Context, Subject, decode_all

CONFIG_REQUEST = error("config-names-no-request", "A configuration names a request that the claim does not have.")
CONFIG_INVALID = error("invalid-config", "The driver refuses the configuration, which fails the pod on its node.")
CONFIG_KIND = error("config-kind", "A configuration is of a kind that the devices it is for do not take.")
CONFIG_UNUSED = warning("config-unused", "A configuration is for no device that the claim can be given.")
CONFIG_INEFFECTIVE = warning("config-without-effect", "The configuration is valid and changes nothing.")
CONFIG_DOMAIN = warning("config-domain", "A configuration names no ComputeDomain, or is that of an IMEX daemon.")
RULES = (CONFIG_REQUEST, CONFIG_INVALID, CONFIG_KIND, CONFIG_UNUSED, CONFIG_INEFFECTIVE, CONFIG_DOMAIN)

_STAND_INS = {"apiVersion": API_VERSION}


def check_configs(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the configurations of a claim or class."""
    if isinstance(subject.decoded, DeviceClass):
        for index, opaque in enumerate(subject.decoded.config):
            yield from _opaque(opaque, f"spec.config[{index}].opaque", subject.source.name, of_class=True)
    claim = subject.claim
    for path, names, opaque in claim.configs() if claim is not None else ():
        assert claim is not None
        yield from request_names(claim, names, f"{path}.requests", CONFIG_REQUEST)
        problems = list(_opaque(opaque, f"{path}.opaque", subject.source.name))
        yield from problems
        if all(problem.rule.severity is Severity.WARNING for problem in problems):
            yield from _fits(claim, names, opaque, path, context)


def _opaque(opaque: OpaqueConfiguration, path: str, owner: str, *, of_class: bool = False) -> Iterator[Issue]:
    parameters = f"{path}.parameters"
    if not is_driver_name(opaque.driver):
        yield Issue(CONFIG_INVALID, f"{path}.driver", f"{opaque.driver!r} is not the name of a driver")
    elif opaque.driver == DRIVER_NAME:
        form = decode_all(dict(opaque.parameters), partial(decode_config, of_class=of_class), _STAND_INS)
        yield from _invalid(form.errors, parameters)
        if form.decoded is not None and not form.errors and (doubt := ineffective(form.decoded, parameters)):
            yield Issue(CONFIG_INEFFECTIVE, doubt.path, doubt.problem)
    elif opaque.driver == DOMAIN_DRIVER:
        found = decode_all(dict(opaque.parameters), decode_domain_config, _STAND_INS)
        yield from _invalid(found.errors, parameters)
        if found.decoded is not None and not found.errors and (doubt := mistake(found.decoded, owner, parameters)):
            yield Issue(CONFIG_DOMAIN, doubt.path, doubt.problem)


def _invalid(errors: Iterable[DecodeError], parameters: str) -> Iterator[Issue]:
    for problem in errors:
        yield Issue(CONFIG_INVALID, f"{parameters}.{problem.path}" if problem.path else parameters, problem.problem)


def _fits(
    claim: ClaimSpec, names: tuple[str, ...], opaque: OpaqueConfiguration, path: str, context: Context
) -> Iterator[Issue]:
    """Check that a request that it names can get a device that reads it. Without names, it is for all requests."""
    requirements = claim.covered(names)
    found = [(one, context.catalog.candidates(one.value)) for one in requirements]
    if not found or not all(candidates for _, candidates in found):
        return  # something is not known, so it may be for that
    drivers = sorted({known.driver for _, candidates in found for known in candidates})
    if opaque.driver not in drivers:
        problem = f"{opaque.driver!r} is not the driver of any device it is for ({', '.join(drivers)}): nobody reads it"
        yield Issue(CONFIG_UNUSED, f"{path}.opaque.driver", problem)
    if opaque.driver != DRIVER_NAME:
        return
    config = decode_config(opaque.parameters)
    others = {one.name: kinds for one, candidates in found if type(config) not in (kinds := _kinds(candidates))}
    if names and others:
        request, kinds = next(iter(others.items()))
        yield Issue(CONFIG_KIND, f"{path}.opaque.parameters.kind", misfit(request, config, kinds))
    elif len(others) == len(found):
        kind = type(config).__name__
        kinds = [one for one in DEVICE_TYPES if any(one in taken for taken in others.values())]
        problem = f"the claim has no request for devices that take a {kind}: {use_other(kinds)}"
        yield Issue(CONFIG_UNUSED, f"{path}.opaque.parameters.kind", problem)


def _kinds(candidates: Iterable[Known]) -> list[type[DeviceConfig]]:
    """The kinds of configurations that these devices take."""
    types = {known.device.attributes.get("type") for known in candidates}
    return [kind for kind, names in DEVICE_TYPES.items() if not types.isdisjoint(names)]
