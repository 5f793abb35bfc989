# SPDX-License-Identifier: Apache-2.0
"""Fields that the release does not know yet, or drops without a word while a feature gate is off.

Gates, fields and releases follow the feature gate list of Kubernetes 1.37.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from .finding import Issue, error, warning
from .subject import DECODED_KINDS, Context, Subject, is_device_api

FUTURE_FIELD = error("field-not-in-release", "The release does not know this field, or no longer.")
GATED_FIELD = warning("feature-gate-off", "The field is dropped unless a feature gate is switched on.")
RULES = (FUTURE_FIELD, GATED_FIELD)


@dataclass(frozen=True, slots=True)
class _Gate:
    """Fields behind a gate: the minor versions that have them first, that switch it on, that have them no more."""

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
    """Whether this rule speaks for the field: some release has it."""
    return _gate_of(path) is not None


def check_gates(subject: Subject, context: Context) -> Iterator[Issue]:
    """The fields of an object of resource.k8s.io against the release."""
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
    """The paths of all fields that are set, opaque parameters left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            if item is not None and key != "parameters":
                yield f"{path}.{key}"
                yield from _paths(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, f"{path}[{index}]")
