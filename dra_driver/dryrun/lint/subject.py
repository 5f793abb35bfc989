# SPDX-License-Identifier: Apache-2.0
"""The objects that rules look at: each with its place, its decoded form, and what else is known.

A mistake must not hide the others of its object. Decoding reports one mistake at a time, so an object is decoded again
after each one, with the wrong part taken away or replaced by a stand-in.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

from ...kube.releases import minor_of
from ...kube.resource import DeviceClaim, DeviceRequirements, OpaqueConfiguration, ResourceClaim, ResourceClaimTemplate
from ...kube.resource.codec import BY_API_VERSION, GROUP, V1BETA1, Decoded, DecodeError, Dialect, decode
from ..documents import JSON, Document
from ..groups import ReferencedObjects
from ..positions import is_within, resolve
from ..strict import Identity, identity_of
from .catalog import Catalog
from .finding import LintIssue
from .reading import DECODED_KINDS

T = TypeVar("T")

_MOST_ERRORS: Final = 100
_REQUIRED: Final = "is required"
_UNKNOWN: Final = "unknown field"
_OTHER_FORM: Final = "is the form of"
_ONE_OF: Final = "exactly one of exactly and firstAvailable"
_OF_REQUEST: Final = ("name", "exactly", "firstAvailable")

STAND_IN: Final = "stand-in"
"""The name of a request or alternative without a name."""
_SELECTOR: Final = {"cel": {"expression": "true"}}
_OPAQUE: Final = {"driver": STAND_IN, "parameters": {}}
FIELDS: Final[Mapping[str, Any]] = {
    "spec": {},
    "name": STAND_IN,
    "deviceClassName": STAND_IN,
    "cel": _SELECTOR["cel"],
    "expression": "true",
    "opaque": _OPAQUE,
    "driver": STAND_IN,
    "parameters": {},
}
"""Stand-ins for required fields of claims and classes."""
_ITEMS: Final[Mapping[str, Any]] = {
    "requests": {"name": STAND_IN},
    "firstAvailable": {"name": STAND_IN, "deviceClassName": STAND_IN},
    "selectors": _SELECTOR,
    "constraints": {},
    "config": {"opaque": _OPAQUE},
    "tolerations": {},
}

_V1ALPHA3: Final = f"{GROUP}/v1alpha3"


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """A decoded object with its errors. `decoded` is None if an error could not be mended."""

    decoded: T | None
    errors: tuple[DecodeError, ...]
    mended: frozenset[str]

    def is_mended(self, path: str) -> bool:
        """Whether `path` is in a mended place: a finding about it would be about a stand-in."""
        return any(is_within(path, place) for place in self.mended)


def is_unknown_field(error: DecodeError) -> bool:
    """Whether the error is about a field that the object may not have."""
    return error.problem.startswith(_UNKNOWN)


def decode_all(value: JSON, decode: Callable[[JSON], T], stand_ins: Mapping[str, Any] = FIELDS) -> Form[T]:
    """Decode `value` with `decode`, which raises DecodeError, and collect all errors."""
    patient = copy.deepcopy(value)
    errors: list[DecodeError] = []
    mended: set[str] = set()
    for _ in range(_MOST_ERRORS):
        try:
            return Form(decode(patient), tuple(errors), frozenset(mended))
        except DecodeError as error:
            if not any(is_within(error.path, place) for place in mended):
                errors.append(error)
            if not _mend(patient, error, stand_ins):
                break
            mended.add(error.path)
    return Form(None, tuple(errors), frozenset(mended))


def _mend(value: JSON, error: DecodeError, stand_ins: Mapping[str, Any]) -> bool:
    """Change `value` so that the error is gone. False if this is impossible."""
    steps, whole = resolve(value, error.path)
    if not whole:
        return _insert(value, error, steps, stand_ins)
    if not steps:
        return False
    *outer, last = steps
    parent = _at(value, tuple(outer))
    if error.problem.startswith(_OTHER_FORM):
        _reshape(parent, "basic" if "'basic'" in error.problem else "exactly")
    elif error.problem.startswith(_ONE_OF):
        parent[last].pop("firstAvailable", None)
        parent[last].setdefault("exactly", {"deviceClassName": STAND_IN})
    elif isinstance(parent, list):
        return _replace_item(parent, last, error, outer)
    elif error.problem.startswith(_REQUIRED) and last in stand_ins:  # it is there, and empty
        parent[last] = copy.deepcopy(stand_ins[str(last)])
    else:
        del parent[last]
    return True


def _insert(value: JSON, error: DecodeError, steps: tuple[str | int, ...], stand_ins: Mapping[str, Any]) -> bool:
    parent = _at(value, steps)
    missing = error.path.rpartition(".")[2]
    if missing not in stand_ins or not isinstance(parent, dict):
        return False
    parent[missing] = copy.deepcopy(stand_ins[missing])
    return True


def _replace_item(parent: list[Any], index: str | int, error: DecodeError, outer: list[str | int]) -> bool:
    """Items are replaced and never removed, so that the places of other items do not change."""
    assert isinstance(index, int)
    stand_in = "" if "must be a string" in error.problem else _ITEMS.get(str(outer[-1]))
    if stand_in is None or parent[index] == stand_in:
        return False
    parent[index] = copy.deepcopy(stand_in)
    return True


def _reshape(value: JSON, level: str) -> None:
    """Converts a request or device from the form of another version: with or without the additional `level`."""
    if level in value:
        inner = value.pop(level)
        value.update(inner if isinstance(inner, dict) else {})
    else:
        value[level] = {key: value.pop(key) for key in list(value) if key not in _OF_REQUEST}


def _at(value: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        value = value[step]
    return value


@dataclass(frozen=True, slots=True)
class Requirement:
    """The requirements of a request, or of an alternative (`request/alternative`), with their path."""

    path: str
    name: str
    value: DeviceRequirements


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The spec of the claim or template `name`. `path` is that of its `devices`."""

    name: str
    path: str
    devices: DeviceClaim
    flat: bool

    @property
    def requests(self) -> list[str]:
        """The names of requests that have one."""
        return [request.name for request in self.devices.requests if request.name != STAND_IN]

    def requirements(self) -> Iterator[Requirement]:
        """The requirements of all requests and alternatives, in the order of the file."""
        for index, request in enumerate(self.devices.requests):
            path = f"{self.path}.requests[{index}]"
            if request.exactly is not None:
                yield Requirement(path if self.flat else f"{path}.exactly", request.name, request.exactly)
            for number, alternative in enumerate(request.first_available):
                place, name = f"{path}.firstAvailable[{number}]", f"{request.name}/{alternative.name}"
                yield Requirement(place, name, alternative.requirements)

    def covered(self, names: tuple[str, ...]) -> list[Requirement]:
        """The requirements that `names` mean: a request with all its alternatives. Without names, all requirements."""
        return [
            requirement
            for requirement in self.requirements()
            if not names or requirement.name in names or requirement.name.partition("/")[0] in names
        ]

    def configs(self) -> Iterator[tuple[str, tuple[str, ...], OpaqueConfiguration]]:
        """Each configuration with its path and the requests that it names."""
        for index, config in enumerate(self.devices.config):
            yield f"{self.path}.config[{index}]", config.requests, config.opaque


@dataclass(frozen=True, slots=True)
class Subject:
    """One object to check. `form` is None for kinds, and versions of them, that are not decoded."""

    document: Document
    form: Form[Decoded] | None

    @property
    def decoded(self) -> Decoded | None:
        """The decoded object; None if its kind is not known or it could not be decoded."""
        return self.form.decoded if self.form is not None else None

    @property
    def claim(self) -> ClaimSpec | None:
        """The spec of a claim or template; None for other objects, and if it could not be decoded."""
        object_ = self.decoded
        flat = _dialect(self.document.api_version).flat_request
        if isinstance(object_, ResourceClaim):
            return ClaimSpec(self.document.own_name, "spec.devices", object_.spec, flat)
        if isinstance(object_, ResourceClaimTemplate):
            return ClaimSpec(self.document.own_name, "spec.spec.devices", object_.spec, flat)
        return None

    def is_news(self, issue: LintIssue) -> bool:
        """Whether the issue is about the text of the file, and not about a stand-in."""
        return self.form is None or not self.form.is_mended(issue.path)


@dataclass(frozen=True)
class LintContext:
    """The context of the object: the release to check for, devices and classes, and all objects of the files.

    `library` has the objects to which workloads refer.
    """

    release: str
    catalog: Catalog
    subjects: tuple[Subject, ...] = ()
    library: ReferencedObjects = field(default_factory=ReferencedObjects)

    def first_of(self, subject: Subject) -> Subject | None:
        """The first object of its file with the name of this one. None if the API server makes its name."""
        return self._first.get((subject.document.file, identity_of(subject.document.value)))

    @cached_property
    def _first(self) -> Mapping[tuple[str, Identity | None], Subject]:
        identities = ((subject, identity_of(subject.document.value)) for subject in reversed(self.subjects))
        return {(first.document.file, identity): first for first, identity in identities if identity is not None}

    @property
    def minor(self) -> int:
        """The minor version of the release."""
        return minor_of(self.release)


def subject_of(document: Document) -> Subject:
    """The object, decoded when it is one of resource.k8s.io that the driver knows."""
    known = document.api_version in (*BY_API_VERSION, _V1ALPHA3) and document.kind in DECODED_KINDS
    return Subject(document, decode_all(document.value, _decode) if known else None)


def is_device_api(document: Document) -> bool:
    """Whether the object belongs to resource.k8s.io."""
    return document.api_version.partition("/")[0] == GROUP


def _decode(value: JSON) -> Decoded:
    version, dialect = value["apiVersion"], _dialect(value["apiVersion"])
    try:
        return decode({**value, "apiVersion": dialect.api_version})
    except DecodeError as error:
        raise DecodeError(error.path, error.problem.replace(f"In {dialect.api_version}", f"In {version}")) from None


def _dialect(api_version: str) -> Dialect:
    """The dialect of the version. v1alpha3 (Kubernetes 1.31 to 1.33) has the form of v1beta1."""
    return BY_API_VERSION.get(api_version, V1BETA1)
