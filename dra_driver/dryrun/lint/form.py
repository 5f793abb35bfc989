# SPDX-License-Identifier: Apache-2.0
"""The text of a file: whether its fields, its apiVersion and its kind exist in the release.

The releases are those of the API lifecycle markers of k8s.io/api (1.37).
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ...kube.releases import VERSIONS_OF_KINDS, known_since, on_since
from ...kube.resource import ResourceSlice
from ...kube.resource.codec import GROUP
from ...kube.resource.device import COUNTERS_APART_SINCE, SliceFeatures
from ...kube.resource.validation import slice_problems
from ...scheduler.pods import form_errors
from .finding import LintIssue, LintRule
from .reading import DECODED_KINDS
from .subject import LintContext, Subject, is_device_api, is_unknown_field

_CLAIM_OF_POD: Final = re.compile(r"\b(resourceClaims|resources\.claims)\[")
"""Places in pods that `pods` checks."""

_WITH_REQUESTS: Final = ("ResourceClaim", "ResourceClaimTemplate")
_OTHER_KINDS: Final = ("DeviceTaintRule", "ResourcePoolStatusRequest")
"""Kinds that exist and are not checked further."""

_REQUEST: Final = r"spec(?:\.spec)?\.devices\.requests\[\](?:\.exactly|\.firstAvailable\[\])?"
_DEVICE: Final = r"spec\.devices\[\](?:\.basic)?"

_INDEX: Final = re.compile(r"\[\d+\]")


def check_form(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check the form. `check_gates` judges fields that some release has."""
    for problem in subject.form.errors if subject.form is not None else ():
        if not is_unknown_field(problem):
            yield LintIssue(LintRule.SCHEMA, problem.path, problem.problem)
        elif not is_gated(problem.path):
            yield LintIssue(LintRule.UNKNOWN_FIELD, problem.path, problem.problem)
    for problem in form_errors(subject.document.value):
        if not _CLAIM_OF_POD.search(problem.path):
            rule = LintRule.UNKNOWN_FIELD if is_unknown_field(problem) else LintRule.SCHEMA
            yield LintIssue(rule, problem.path, problem.problem)


def check_identity(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check that no earlier object has the same name."""
    first = context.first_of(subject)
    if first is not None and first is not subject:
        said = f"there is another {subject.document.kind} of this name in the file: rename one, or remove it"
        yield LintIssue(LintRule.DUPLICATE_OBJECT, "metadata.name", said)


def check_slice(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check a ResourceSlice by the rules of the API server."""
    if isinstance(subject.decoded, ResourceSlice):
        features = SliceFeatures(counters_beside_devices=context.minor < COUNTERS_APART_SINCE)
        for problem in slice_problems(subject.decoded, features):
            yield LintIssue(LintRule.INVALID_SLICE, problem.path, problem.message)


def check_version(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check that the release serves the object's apiVersion and kind."""
    document = subject.document
    if not is_device_api(document) or document.kind in _OTHER_KINDS:
        return
    if document.kind not in DECODED_KINDS:
        close = difflib.get_close_matches(document.kind, (*DECODED_KINDS, *_OTHER_KINDS), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(DECODED_KINDS)}"
        yield LintIssue(LintRule.UNKNOWN_KIND, "kind", f"{GROUP} has no kind {document.kind!r}; {hint}")
        return
    name = document.api_version.partition("/")[2]
    versions = VERSIONS_OF_KINDS[GROUP, document.kind]
    version = versions.get(name)
    best = next(served for served, version in versions.items() if version.first <= context.minor)
    moved = best == "v1" and name != "v1beta2" and document.kind in _WITH_REQUESTS
    use = f"use {GROUP}/{best}" + ("; what a request asks for goes under 'exactly' there" if moved else "")
    rule = LintRule.API_VERSION_NOT_SERVED
    if version is None:
        problem = f"does not exist: {use}"
    elif context.minor < version.first:
        problem = f"is served from Kubernetes 1.{version.first} on: for {context.release} {use}"
    elif version.gone is not None and context.minor >= version.gone:
        problem = f"is gone since Kubernetes 1.{version.gone}: {use}"
    elif best == "v1" and name != "v1":
        rule = LintRule.DEPRECATED_API_VERSION
        outlook = f"is deprecated since 1.{version.deprecated} and will be gone in 1.{version.gone}"
        problem = f"is served only where --runtime-config asks for it, {outlook}: {use}"
    else:
        return
    yield LintIssue(rule, "apiVersion", f"{document.api_version} {problem}")


@dataclass(frozen=True, slots=True)
class GatedField:
    """A feature gate and its fields, and the first minor version with them and without them. By default, the first
    version with them is that with the gate.
    """

    name: str
    fields: str
    since: int | None = None
    gone: int | None = None

    @property
    def first(self) -> int:
        """The first minor version with the fields."""
        return self.since or known_since(self.name)

    @property
    def on(self) -> int | None:
        """The first minor version with the gate enabled."""
        return on_since(self.name)


GATED_FIELDS: Final = (
    GatedField("DRAPrioritizedList", r"spec(\.spec)?\.devices\.requests\[\]\.firstAvailable"),
    GatedField("DRAAdminAccess", rf"{_REQUEST}\.adminAccess"),
    GatedField("DRADeviceTaints", rf"{_REQUEST}\.tolerations|{_DEVICE}\.taints"),
    GatedField(
        "DRAConsumableCapacity",
        rf"{_REQUEST}\.capacity|spec(\.spec)?\.devices\.constraints\[\]\.distinctAttribute"
        rf"|{_DEVICE}\.(allowMultipleAllocations|capacity\.[^.]+\.requestPolicy)",
    ),
    GatedField("DRADerivedAttributes", rf"{_REQUEST}\.derivedAttributes"),
    GatedField("DRAExtendedResource", r"spec\.extendedResourceName"),
    GatedField(
        "DRAPartitionableDevices",
        rf"spec\.(sharedCounters|perDeviceNodeSelection)|{_DEVICE}\.(consumesCounters|nodeName|nodeSelector|allNodes)",
    ),
    GatedField("DRADeviceBindingConditions", rf"{_DEVICE}\.(bindsToNode|bindingConditions|bindingFailureConditions)"),
    GatedField("DRAListTypeAttributes", rf"{_DEVICE}\.attributes\.[^.]+(\.[^.]+)*\.(ints|bools|strings|versions)"),
    GatedField("DRANodeAllocatableResources", rf"{_DEVICE}\.nodeAllocatableResourceMappings", gone=37),
    GatedField("DRANodeAllocatableResources", rf"{_DEVICE}\.nodeAllocatableResources", 37),
    GatedField("DRAPartitionableDevicesType", r"spec\.partitionTypeAttribute"),
    GatedField("DRAOptionalNodeOperations", r"spec\.skipNodeOperations"),
    GatedField("DRADeviceCompatibilityGroups", rf"{_DEVICE}\.consumesCounters\[\]\.compatibilityGroups"),
)


def is_gated(path: str) -> bool:
    """Whether some release has the field behind a feature gate."""
    return gate_of(path) is not None


def check_gates(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check that the release has the fields of an object of resource.k8s.io."""
    if not is_device_api(subject.document) or subject.document.kind not in DECODED_KINDS:
        return
    for path in set_fields(subject.document.value.get("spec"), "spec"):
        gate = gate_of(path)
        if gate is None:
            continue
        if context.minor < gate.first:
            since = f"is known from Kubernetes 1.{gate.first} on (feature gate {gate.name}), not in {context.release}"
            yield LintIssue(LintRule.FIELD_NOT_IN_RELEASE, path, f"{since}: remove it, or lint for a newer release")
        elif gate.gone is not None and context.minor >= gate.gone:
            yield LintIssue(LintRule.FIELD_NOT_IN_RELEASE, path, f"was removed in Kubernetes 1.{gate.gone}: remove it")
        elif gate.on is None or context.minor < gate.on:
            dropped = f"is dropped by Kubernetes {context.release} unless the feature gate {gate.name} is on"
            default = f", on by default from 1.{gate.on} on" if gate.on is not None else ""
            yield LintIssue(LintRule.FEATURE_GATE_OFF, path, dropped + default)


def gate_of(path: str) -> GatedField | None:
    """The gate of a field, given its path. None if no release has the field behind a gate."""
    plain = _INDEX.sub("[]", path)
    return next((gate for gate in GATED_FIELDS if re.fullmatch(gate.fields, plain)), None)


def set_fields(value: Any, path: str) -> Iterator[str]:
    """The paths of all fields that are set, without opaque parameters."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item is not None and key != "parameters":
                yield f"{path}.{key}"
                yield from set_fields(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from set_fields(item, f"{path}[{index}]")
