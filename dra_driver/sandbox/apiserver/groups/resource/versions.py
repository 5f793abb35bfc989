# SPDX-License-Identifier: Apache-2.0
"""Fields behind feature gates, and conversion between v1 and the other API versions.

While a feature gate is disabled, the server silently drops its fields, unless the stored object has one of them. A
field is named by its path: `[]` stands for every item of a list, `{}` for every value of a map. The tables have the
fields that the driver and its users set.

v1beta2 has v1's form. v1beta1 has a device's fields under `basic`, and the fields of `exactly` directly in the request.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from ...kinds import Conversion
from ...objects import Object
from ...release import Release

Gated = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Feature gates, all of which must be enabled, and the fields behind them."""

_DEVICE: Final = "spec.devices.[]."

SLICE: Final[Gated] = (
    (("DRADeviceTaints",), (f"{_DEVICE}taints",)),
    (
        ("DRAPartitionableDevices",),
        (
            "spec.sharedCounters",
            "spec.perDeviceNodeSelection",
            f"{_DEVICE}consumesCounters",
            f"{_DEVICE}nodeName",
            f"{_DEVICE}nodeSelector",
            f"{_DEVICE}allNodes",
        ),
    ),
    (
        ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"),
        (f"{_DEVICE}bindingConditions", f"{_DEVICE}bindingFailureConditions", f"{_DEVICE}bindsToNode"),
    ),
    (
        ("DRAConsumableCapacity",),
        (f"{_DEVICE}allowMultipleAllocations", f"{_DEVICE}capacity.{{}}.requestPolicy"),
    ),
    (
        ("DRAListTypeAttributes",),
        tuple(f"{_DEVICE}attributes.{{}}.{name}" for name in ("bools", "ints", "strings", "versions")),
    ),
    (("DRADeviceCompatibilityGroups",), (f"{_DEVICE}consumesCounters.[].compatibilityGroups",)),
    (
        ("DRANodeAllocatableResources",),
        (f"{_DEVICE}nodeAllocatableResources", f"{_DEVICE}nodeAllocatableResourceMappings"),
    ),
    (("DRAOptionalNodeOperations",), ("spec.skipNodeOperations",)),
)

_RESULT: Final = "status.allocation.devices.results.[]."

CLAIM_STATUS: Final[Gated] = (
    (("DRAResourceClaimDeviceStatus",), ("status.devices",)),
    (("DRAAdminAccess",), (f"{_RESULT}adminAccess",)),
    (
        ("DRAConsumableCapacity",),
        (f"{_RESULT}shareID", f"{_RESULT}consumedCapacity", "status.devices.[].shareID"),
    ),
    (
        ("DRADeviceBindingConditions",),
        (f"{_RESULT}bindingConditions", f"{_RESULT}bindingFailureConditions"),
    ),
    (("DRAOptionalNodeOperations",), (f"{_RESULT}skipNodeOperations",)),
)

CLASS: Final[Gated] = ((("DRAExtendedResource",), ("spec.extendedResourceName",)),)

_OLD: Final = "v1beta1"
_EXACT_FIELDS: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)


def claim_spec(prefix: str) -> Gated:
    """Return the gated fields of a claim's spec at `prefix` of the object."""
    request = f"{prefix}.devices.requests.[]."
    each = (f"{request}exactly.", f"{request}firstAvailable.[].")
    return (
        (("DRAPrioritizedList",), (f"{request}firstAvailable",)),
        (("DRADeviceTaints",), tuple(f"{form}tolerations" for form in each)),
        (("DRAAdminAccess",), (f"{request}exactly.adminAccess",)),
        (
            ("DRAConsumableCapacity",),
            (f"{prefix}.devices.constraints.[].distinctAttribute", *(f"{form}capacity" for form in each)),
        ),
        (("DRADerivedAttributes",), tuple(f"{form}derivedAttributes" for form in each)),
    )


def drop_disabled(new: Object, old: Object | None, gated: Gated, release: Release) -> None:
    """Drop fields behind disabled feature gates, unless the old object has fields of the gates."""
    for gates, fields in gated:
        if all(release.enabled(gate) for gate in gates):
            continue
        if old is not None and any(_has(old, field) for field in fields):
            continue
        for field in fields:
            *path, last = field.split(".")
            for parent in _parents(new, path):
                parent.pop(last, None)


def _has(obj: Object, field: str) -> bool:
    *path, last = field.split(".")
    return any(parent.get(last) for parent in _parents(obj, path))


def _parents(value: Any, path: Sequence[str]) -> list[dict[str, Any]]:
    """The objects at `path`, in which `[]` stands for the items of a list and `{}` for the values of an object."""
    found = [value]
    for word in path:
        if word == "[]":
            found = [item for outer in found if isinstance(outer, list) for item in outer]
        elif word == "{}":
            found = [item for outer in found if isinstance(outer, dict) for item in outer.values()]
        else:
            found = [outer[word] for outer in found if isinstance(outer, dict) and word in outer]
    return [value for value in found if isinstance(value, dict)]


def _flat_device(device: Object) -> Object:
    return {**{name: value for name, value in device.items() if name != "basic"}, **device.get("basic", {})}


def _basic_device(device: Object) -> Object:
    basic = {name: value for name, value in device.items() if name != "name"}
    return {**({"name": device["name"]} if "name" in device else {}), "basic": basic}


def _exact_request(request: Object) -> Object:
    exactly = {name: request[name] for name in _EXACT_FIELDS if name in request}
    rest = {name: value for name, value in request.items() if name not in _EXACT_FIELDS}
    return {**rest, "exactly": exactly} if exactly else rest


def _flat_request(request: Object) -> Object:
    rest = {name: value for name, value in request.items() if name != "exactly"}
    return {**rest, "deviceClassName": "", **request.get("exactly", {})}


def _replaced(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Return a copy of `value` with a changed list at `path`, or `value` if there is no list."""
    if not path:
        return change(value) if isinstance(value, list) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _replaced(value[path[0]], path[1:], change)}


def _conversion(convert: Callable[[Object], Object], *path: str) -> Conversion:
    """Return a conversion between v1beta1 and v1: it converts the items of the list at `path`."""

    def run(obj: Object, version: str) -> Object:
        if version != _OLD:
            return obj
        changed: Object = _replaced(obj, path, lambda items: [convert(item) for item in items])
        return changed

    return run


slice_to_stored: Final = _conversion(_flat_device, "spec", "devices")
slice_from_stored: Final = _conversion(_basic_device, "spec", "devices")
claim_to_stored: Final = _conversion(_exact_request, "spec", "devices", "requests")
claim_from_stored: Final = _conversion(_flat_request, "spec", "devices", "requests")
template_to_stored: Final = _conversion(_exact_request, "spec", "spec", "devices", "requests")
template_from_stored: Final = _conversion(_flat_request, "spec", "spec", "devices", "requests")
