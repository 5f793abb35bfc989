# SPDX-License-Identifier: Apache-2.0
"""The text of a file: whether its fields, its apiVersion and its kind exist in the release.

The releases are those of the API lifecycle markers of k8s.io/api (1.37).
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...resource import ResourceSlice
from ...resource.codec import GROUP
from ...resource.device import COUNTERS_APART_SINCE, SliceFeatures
from ...resource.validation import slice_problems
from ..strict import unknown_fields
from .finding import Issue, error, warning
from .subject import DECODED_KINDS, Context, Subject, is_device_api, is_unknown_field

UNKNOWN_FIELD = error("unknown-field", "The object has a field that does not exist there.")
SCHEMA = error("schema", "A field is missing, is of the wrong type, or belongs to another version's form.")
REPEATED = error("duplicate-object", "Another object of the file has the same kind, namespace and name.")
INVALID_SLICE = error("invalid-slice", "The API server would refuse the ResourceSlice.")
NOT_SERVED = error("api-version-not-served", "The release does not serve this version of resource.k8s.io.")
DEPRECATED = warning("deprecated-api-version", "Clusters serve this version only on request, and it will be removed.")
UNKNOWN_KIND = error("unknown-kind", "resource.k8s.io has no such kind.")
FUTURE_FIELD = error("field-not-in-release", "The release does not have this field yet, or no longer has it.")
GATED_FIELD = warning("feature-gate-off", "The field is dropped unless a feature gate is switched on.")
RULES = (
    UNKNOWN_FIELD,
    SCHEMA,
    REPEATED,
    INVALID_SLICE,
    NOT_SERVED,
    DEPRECATED,
    UNKNOWN_KIND,
    FUTURE_FIELD,
    GATED_FIELD,
)


_CLAIM_OF_POD: Final = re.compile(r"\b(resourceClaims|resources\.claims)\[")
"""Places in pods that `pods` checks."""


def check_form(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check the form. `check_gates` judges fields that some release has."""
    for problem in subject.form.errors if subject.form is not None else ():
        if not is_unknown_field(problem):
            yield Issue(SCHEMA, problem.path, problem.problem)
        elif not is_gated(problem.path):
            yield Issue(UNKNOWN_FIELD, problem.path, problem.problem)
    for problem in unknown_fields(subject.source.value):
        if not _CLAIM_OF_POD.search(problem.path):
            yield Issue(UNKNOWN_FIELD, problem.path, problem.problem)


def check_identity(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check that no earlier object has the same name."""
    first = context.first_of(subject)
    if first is not None and first is not subject:
        said = f"there is another {subject.source.kind} of this name in the file: rename one, or remove it"
        yield Issue(REPEATED, "metadata.name", said)


def check_slice(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check a ResourceSlice by the rules of the API server."""
    if isinstance(subject.decoded, ResourceSlice):
        features = SliceFeatures(counters_beside_devices=context.minor < COUNTERS_APART_SINCE)
        for problem in slice_problems(subject.decoded, features):
            yield Issue(INVALID_SLICE, problem.path, problem.message)


_WITH_REQUESTS: Final = ("ResourceClaim", "ResourceClaimTemplate")
_OTHER_KINDS: Final = ("DeviceTaintRule", "ResourcePoolStatusRequest")
"""Kinds that exist and are not checked further."""


@dataclass(frozen=True, slots=True)
class _Lifecycle:
    """Minor versions of Kubernetes: the first that serves it, the one that deprecates it, the first without it."""

    first: int
    deprecated: int | None = None
    gone: int | None = None


_VERSIONS: Final[Mapping[str, _Lifecycle]] = {
    "v1": _Lifecycle(34),
    "v1beta2": _Lifecycle(33, 36, 39),
    "v1beta1": _Lifecycle(32, 35, 38),
    "v1alpha3": _Lifecycle(31, gone=34),
}
_FIRST_WITH_V1: Final = 34


def check_version(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check that the release serves the object's apiVersion and kind."""
    source = subject.source
    if not is_device_api(source) or source.kind in _OTHER_KINDS:
        return
    if source.kind not in DECODED_KINDS:
        close = difflib.get_close_matches(source.kind, (*DECODED_KINDS, *_OTHER_KINDS), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(DECODED_KINDS)}"
        yield Issue(UNKNOWN_KIND, "kind", f"{GROUP} has no kind {source.kind!r}; {hint}")
        return
    name = source.api_version.partition("/")[2]
    best = _best(context.minor)
    moved = best == "v1" and name != "v1beta2" and source.kind in _WITH_REQUESTS
    change = "" if not moved else "; what a request asks for goes under 'exactly' there"
    version = _VERSIONS.get(name)
    if version is None:
        yield Issue(NOT_SERVED, "apiVersion", f"{source.api_version} does not exist: use {GROUP}/{best}{change}")
    elif context.minor < version.first:
        problem = f"{source.api_version} is served from Kubernetes 1.{version.first} on: for {context.release} use"
        yield Issue(NOT_SERVED, "apiVersion", f"{problem} {GROUP}/{best}")
    elif version.gone is not None and context.minor >= version.gone:
        problem = f"{source.api_version} is gone since Kubernetes 1.{version.gone}: use"
        yield Issue(NOT_SERVED, "apiVersion", f"{problem} {GROUP}/{best}{change}")
    elif name != "v1" and context.minor >= _FIRST_WITH_V1:
        yield Issue(
            DEPRECATED,
            "apiVersion",
            f"{source.api_version} is served only where --runtime-config asks for it{_outlook(version)}:"
            f" use {GROUP}/v1{change}",
        )


def _best(release: int) -> str:
    return next(name for name, version in _VERSIONS.items() if version.first <= release)


def _outlook(version: _Lifecycle) -> str:
    return f", is deprecated since 1.{version.deprecated} and will be gone in 1.{version.gone}"


@dataclass(frozen=True, slots=True)
class _Gate:
    """A feature gate and its fields: the first minor version with them, with the gate enabled, and without them."""

    name: str
    fields: re.Pattern[str]
    first: int
    on: int | None = None
    gone: int | None = None


def _gate(name: str, fields: str, first: int, on: int | None = None, gone: int | None = None) -> _Gate:
    return _Gate(name, re.compile(fields), first, on, gone)


_REQUEST: Final = r"spec(?:\.spec)?\.devices\.requests\[\](?:\.exactly|\.firstAvailable\[\])?"
_DEVICE: Final = r"spec\.devices\[\](?:\.basic)?"
_GATES: Final = (
    _gate("DRAPrioritizedList", r"spec(\.spec)?\.devices\.requests\[\]\.firstAvailable", 33, 34),
    _gate("DRAAdminAccess", rf"{_REQUEST}\.adminAccess", 32, 34),
    _gate("DRADeviceTaints", rf"{_REQUEST}\.tolerations|{_DEVICE}\.taints", 33, 36),
    _gate(
        "DRAConsumableCapacity",
        rf"{_REQUEST}\.capacity|spec(\.spec)?\.devices\.constraints\[\]\.distinctAttribute"
        rf"|{_DEVICE}\.(allowMultipleAllocations|capacity\.[^.]+\.requestPolicy)",
        34,
        36,
    ),
    _gate("DRADerivedAttributes", rf"{_REQUEST}\.derivedAttributes", 37),
    _gate("DRAExtendedResource", r"spec\.extendedResourceName", 34, 36),
    _gate(
        "DRAPartitionableDevices",
        rf"spec\.(sharedCounters|perDeviceNodeSelection)|{_DEVICE}\.(consumesCounters|nodeName|nodeSelector|allNodes)",
        33,
        36,
    ),
    _gate(
        "DRADeviceBindingConditions",
        rf"{_DEVICE}\.(bindsToNode|bindingConditions|bindingFailureConditions)",
        34,
        36,
    ),
    _gate("DRAListTypeAttributes", rf"{_DEVICE}\.attributes\.[^.]+(\.[^.]+)*\.(ints|bools|strings|versions)", 36),
    _gate("DRANodeAllocatableResources", rf"{_DEVICE}\.nodeAllocatableResourceMappings", 36, gone=37),
    _gate("DRANodeAllocatableResources", rf"{_DEVICE}\.nodeAllocatableResources", 37),
    _gate("DRAPartitionableDevicesType", r"spec\.partitionTypeAttribute", 37),
    _gate("DRAOptionalNodeOperations", r"spec\.skipNodeOperations", 37),
    _gate(
        "DRADeviceCompatibilityGroups",
        rf"{_DEVICE}\.consumesCounters\[\]\.compatibilityGroups",
        37,
    ),
)
_INDEX: Final = re.compile(r"\[\d+\]")


def is_gated(path: str) -> bool:
    """Whether some release has the field behind a feature gate."""
    return _gate_of(path) is not None


def check_gates(subject: Subject, context: Context) -> Iterator[Issue]:
    """Check that the release has the fields of an object of resource.k8s.io."""
    if not is_device_api(subject.source) or subject.source.kind not in DECODED_KINDS:
        return
    for path in _paths(subject.source.value.get("spec"), "spec"):
        gate = _gate_of(path)
        if gate is None:
            continue
        if context.minor < gate.first:
            since = f"is known from Kubernetes 1.{gate.first} on (feature gate {gate.name})"
            yield Issue(
                FUTURE_FIELD, path, f"{since}, not in {context.release}: remove it, or lint for a newer release"
            )
        elif gate.gone is not None and context.minor >= gate.gone:
            yield Issue(FUTURE_FIELD, path, f"was removed in Kubernetes 1.{gate.gone}: remove it")
        elif gate.on is None or context.minor < gate.on:
            default = f", on by default from 1.{gate.on} on" if gate.on is not None else ""
            yield Issue(
                GATED_FIELD,
                path,
                f"is dropped by Kubernetes {context.release} unless the feature gate {gate.name} is on{default}",
            )


def _gate_of(path: str) -> _Gate | None:
    plain = _INDEX.sub("[]", path)
    return next((gate for gate in _GATES if gate.fields.fullmatch(plain)), None)


def _paths(value: Any, path: str) -> Iterator[str]:
    """The paths of all fields that are set, without opaque parameters."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item is not None and key != "parameters":
                yield f"{path}.{key}"
                yield from _paths(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, f"{path}[{index}]")
