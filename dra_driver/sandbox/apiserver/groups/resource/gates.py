# SPDX-License-Identifier: Apache-2.0
"""Fields behind feature gates: while a gate is off, the server silently leaves its fields out.

Except when the object uses the feature already: then an update may go on using it. A field is
named by its path; `[]` stands for every item of a list, `{}` for every value of a map.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...objects import Object
from ...release import Release

_Path = tuple[str, ...]
Gated = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""Gates, all of which must be on, and the fields that they allow."""

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
        ("DRANodeAllocatableResources",),
        (f"{_DEVICE}nodeAllocatableResourceMappings", f"{_DEVICE}nodeAllocatableResources"),
    ),
    (
        ("DRAListTypeAttributes",),
        tuple(f"{_DEVICE}attributes.{{}}.{name}" for name in ("bools", "ints", "strings", "versions")),
    ),
    (("DRAOptionalNodeOperations",), ("spec.skipNodeOperations",)),
    (("DRADeviceCompatibilityGroups",), (f"{_DEVICE}consumesCounters.[].compatibilityGroups",)),
)


def claim_spec(prefix: str) -> Gated:
    """The fields of a claim's spec, which is at `prefix` of the object."""
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


def drop_disabled(new: Object, old: Object | None, gated: Gated, release: Release) -> None:
    """Removes from `new` what disabled gates cover, unless `old` uses it."""
    for gates, fields in gated:
        if all(release.enabled(gate) for gate in gates):
            continue
        paths = [tuple(field.split(".")) for field in fields]
        if old is not None and any(_used(old, path) for path in paths):
            continue
        for path in paths:
            for parent in _parents(new, path[:-1]):
                parent.pop(path[-1], None)


def _used(obj: Object, path: _Path) -> bool:
    return any(parent.get(path[-1]) not in (None, [], {}) for parent in _parents(obj, path[:-1]))


def _parents(value: Any, path: _Path) -> Iterator[dict[str, Any]]:
    """The objects at `path`."""
    if not path:
        if isinstance(value, dict):
            yield value
        return
    head, rest = path[0], path[1:]
    inner: Iterable[Any]
    if head == "[]":
        inner = value if isinstance(value, list) else ()
    elif head == "{}":
        inner = value.values() if isinstance(value, dict) else ()
    else:
        inner = (value[head],) if isinstance(value, dict) and head in value else ()
    for item in inner:
        yield from _parents(item, rest)
