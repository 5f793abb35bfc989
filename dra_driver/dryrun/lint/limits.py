# SPDX-License-Identifier: Apache-2.0
"""Sizes that the API server or the scheduler sets for claims and classes."""

import json
from collections.abc import Iterator

from ...resource import DeviceClass, OpaqueConfiguration, limits
from .finding import Issue, error
from .subject import ClaimSpec, Context, Subject

TOO_MANY = error("too-many", "A list is longer than the API server takes, or a claim asks for too many devices.")
TOO_LARGE = error("too-large", "Opaque parameters are larger than the API server takes.")
RULES = (TOO_MANY, TOO_LARGE)

_TOLERATIONS = 16


def check_limits(subject: Subject, context: Context) -> Iterator[Issue]:
    """The lengths of lists, and the size of configurations."""
    claim, one = subject.claim, subject.decoded
    lists: list[tuple[str, int, int]] = []
    opaques: list[tuple[str, OpaqueConfiguration]] = []
    if isinstance(one, DeviceClass):
        lists = [
            ("spec.selectors", len(one.selectors), limits.SELECTORS_PER_LIST),
            ("spec.config", len(one.config), limits.CONFIGS_PER_CLAIM),
        ]
        opaques = [(f"spec.config[{index}]", opaque) for index, opaque in enumerate(one.config)]
    elif claim is not None:
        lists = list(_lists(claim))
        opaques = [(path, opaque) for path, _, opaque in claim.configs()]
        yield from _total(claim)
    for path, length, most in lists:
        if length > most:
            yield Issue(TOO_MANY, path, f"has {length} entries, at most {most} are taken")
    most = limits.OPAQUE_PARAMETERS_BYTES
    for path, opaque in opaques:
        size = len(json.dumps(opaque.parameters, separators=(",", ":"), default=str).encode())
        if size > most:
            yield Issue(TOO_LARGE, f"{path}.opaque.parameters", f"has {size} bytes, at most {most} are taken")


def _lists(claim: ClaimSpec) -> Iterator[tuple[str, int, int]]:
    devices = claim.devices
    yield f"{claim.path}.requests", len(devices.requests), limits.REQUESTS_PER_CLAIM
    yield f"{claim.path}.constraints", len(devices.constraints), limits.CONSTRAINTS_PER_CLAIM
    yield f"{claim.path}.config", len(devices.config), limits.CONFIGS_PER_CLAIM
    for index, request in enumerate(devices.requests):
        path = f"{claim.path}.requests[{index}].firstAvailable"
        yield path, len(request.first_available), limits.ALTERNATIVES_PER_REQUEST
    for one in claim.requirements():
        yield f"{one.path}.selectors", len(one.value.selectors), limits.SELECTORS_PER_LIST
        yield f"{one.path}.tolerations", len(one.value.tolerations), _TOLERATIONS


def _total(claim: ClaimSpec) -> Iterator[Issue]:
    """All of a request's alternatives may be small enough, one must be."""
    least = 0
    for request in claim.devices.requests:
        choices = [request.exactly] if request.exactly is not None else []
        choices += [one.requirements for one in request.first_available]
        least += min((max(one.count, 1) for one in choices), default=0)
    if least > limits.RESULTS_PER_CLAIM:
        most = limits.RESULTS_PER_CLAIM
        problem = f"the claim asks for at least {least} devices, it can be given {most}: use several claims"
        yield Issue(TOO_MANY, f"{claim.path}.requests", problem)
