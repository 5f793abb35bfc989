# SPDX-License-Identifier: Apache-2.0
"""The served versions of resource.k8s.io and where their JSON differs.

v1 and v1beta2 have one form. v1beta1 nests a device's fields under `basic` and writes an exact
request's fields directly into the request.
"""

from dataclasses import dataclass

GROUP = "resource.k8s.io"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One version's JSON form."""

    version: str
    nested_device: bool = False  # devices[].basic
    flat_request: bool = False  # no requests[].exactly

    @property
    def api_version(self) -> str:
        return f"{GROUP}/{self.version}"


V1 = Dialect("v1")
V1BETA2 = Dialect("v1beta2")
V1BETA1 = Dialect("v1beta1", nested_device=True, flat_request=True)

DIALECTS: tuple[Dialect, ...] = (V1, V1BETA2, V1BETA1)
"""Newest first: the order in which a client should prefer them."""

BY_API_VERSION = {dialect.api_version: dialect for dialect in DIALECTS}
