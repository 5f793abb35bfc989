# SPDX-License-Identifier: Apache-2.0
"""What rules look at: an object with its place, its decoded form, and what is known beyond it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...resource import DeviceClaim, DeviceRequirements, OpaqueConfiguration, ResourceClaim, ResourceClaimTemplate
from ...resource.codec import BY_API_VERSION, GROUP, V1BETA1, Decoded, DecodeError, Dialect, decode
from ..documents import JSON
from .catalog import Catalog
from .finding import Issue
from .mend import STAND_IN, Form, decode_all
from .source import Source

_V1ALPHA3: Final = f"{GROUP}/v1alpha3"
DECODED_KINDS: Final = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one request, or one alternative of it (`request/alternative`), asks for, and at which path."""

    path: str
    name: str
    value: DeviceRequirements


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of a claim or template. `path` is that of its `devices`."""

    path: str
    devices: DeviceClaim
    flat: bool

    @property
    def requests(self) -> list[str]:
        """The names that requests were given."""
        return [one.name for one in self.devices.requests if one.name != STAND_IN]

    def requirements(self) -> Iterator[Requirement]:
        """All of them, alternatives too, in the order of the file."""
        for index, request in enumerate(self.devices.requests):
            path = f"{self.path}.requests[{index}]"
            if request.exactly is not None:
                yield Requirement(path if self.flat else f"{path}.exactly", request.name, request.exactly)
            for number, one in enumerate(request.first_available):
                yield Requirement(f"{path}.firstAvailable[{number}]", f"{request.name}/{one.name}", one.requirements)

    def covered(self, names: tuple[str, ...]) -> list[Requirement]:
        """The requirements that `names` stand for: a request with all its alternatives; all when there are none."""
        return [
            one for one in self.requirements() if not names or one.name in names or one.name.partition("/")[0] in names
        ]

    def configs(self) -> Iterator[tuple[str, tuple[str, ...], OpaqueConfiguration]]:
        """Each configuration with its path and the requests that it names."""
        for index, config in enumerate(self.devices.config):
            yield f"{self.path}.config[{index}]", config.requests, config.opaque


@dataclass(frozen=True, slots=True)
class Subject:
    """One object to check. `form` is None for kinds, and versions of them, that are not decoded."""

    source: Source
    form: Form[Decoded] | None

    @property
    def decoded(self) -> Decoded | None:
        return self.form.decoded if self.form is not None else None

    @property
    def claim(self) -> ClaimSpec | None:
        """The claim's spec, when it is a claim or template that could be decoded."""
        one = self.decoded
        flat = _dialect(self.source.api_version).flat_request
        if isinstance(one, ResourceClaim):
            return ClaimSpec("spec.devices", one.spec, flat)
        if isinstance(one, ResourceClaimTemplate):
            return ClaimSpec("spec.spec.devices", one.spec, flat)
        return None

    def is_news(self, issue: Issue) -> bool:
        """Whether the issue is about what the file says, not about a stand-in for it."""
        return self.form is None or not self.form.is_mended(issue.path)


@dataclass(frozen=True, slots=True)
class Context:
    """What is known beside the object: the release to check for, devices and classes, and all objects of the files."""

    release: str
    catalog: Catalog
    subjects: tuple[Subject, ...] = ()

    @property
    def minor(self) -> int:
        """The minor version of the release."""
        return int(self.release.partition(".")[2])


def subject_of(source: Source) -> Subject:
    """The object, decoded when it is one of resource.k8s.io that the driver knows."""
    known = source.api_version in (*BY_API_VERSION, _V1ALPHA3) and source.kind in DECODED_KINDS
    return Subject(source, decode_all(source.value, _decode) if known else None)


def is_device_api(source: Source) -> bool:
    """Whether the object belongs to resource.k8s.io."""
    return source.api_version.partition("/")[0] == GROUP


def _decode(value: JSON) -> Decoded:
    version, dialect = value["apiVersion"], _dialect(value["apiVersion"])
    try:
        return decode({**value, "apiVersion": dialect.api_version})
    except DecodeError as error:
        raise DecodeError(error.path, error.problem.replace(f"In {dialect.api_version}", f"In {version}")) from None


def _dialect(api_version: str) -> Dialect:
    """How objects of the version are written; v1alpha3 (Kubernetes 1.31 to 1.33) has the form of v1beta1."""
    return BY_API_VERSION.get(api_version, V1BETA1)
