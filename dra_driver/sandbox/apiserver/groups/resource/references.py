# SPDX-License-Identifier: Apache-2.0
"""References to a claim's requests: from its constraints, its configuration, its allocation result."""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ...objects import Object
from . import rules
from .rules import Problems

_REFERENCE: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)

RequestNames = Mapping[str, frozenset[str]]
"""Request -> its subrequests."""


def request_names(spec: Object) -> RequestNames:
    """The requests of a claim's spec that configuration and results may refer to."""
    return {
        request.get("name", ""): frozenset(sub.get("name", "") for sub in request.get("firstAvailable", ()))
        for request in spec.get("devices", {}).get("requests", ())
    }


def reference_problems(name: str, path: str, known: RequestNames) -> Problems:
    """Of a reference `request` or `request/subrequest`."""
    parts = name.split("/")
    if len(parts) > 2:
        yield errors.invalid(path, name, _REFERENCE)
        return
    for part in parts:
        yield from rules.label_problems(part, path)
    if parts[0] not in known or (len(parts) == 2 and parts[1] not in known[parts[0]]):
        yield errors.invalid(path, name, _REFERENCE)


def references_problems(references: Any, path: str, known: RequestNames) -> Problems:
    """Of a list of references."""

    def check(name: str, here: str) -> Problems:
        return reference_problems(name, here, known)

    yield from rules.set_problems(references, limits.REQUESTS_PER_CLAIM, check, lambda name: name, path)
