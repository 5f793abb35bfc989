# SPDX-License-Identifier: Apache-2.0
"""Between the form of v1, in which objects are stored, and the other versions.

v1beta2 has v1's shape. v1beta1 keeps a device's fields under `basic` and writes a request's
`exactly` fields directly into the request.
"""

from collections.abc import Callable
from typing import Any, Final

from ...objects import Object

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


def slice_to_stored(obj: Object, version: str) -> Object:
    """A ResourceSlice in v1's form."""
    if version != _OLD or "spec" not in obj:
        return obj
    spec = _devices(obj["spec"], _flat_device)
    # v1beta1 does not tell these from their absence.
    for field, unset in (("nodeName", ""), ("allNodes", False)):
        if spec.get(field) == unset:
            spec.pop(field, None)
    return {**obj, "spec": spec}


def slice_from_stored(obj: Object, version: str) -> Object:
    """A stored ResourceSlice in `version`."""
    if version != _OLD or "spec" not in obj:
        return obj
    return {**obj, "spec": _devices(obj["spec"], _basic_device)}


def _devices(spec: Object, convert: Callable[[Object], Object]) -> Object:
    result = dict(spec)
    if result.get("devices"):
        result["devices"] = [convert(device) for device in result["devices"]]
    return result


def _flat_device(device: Object) -> Object:
    return {**{name: value for name, value in device.items() if name != "basic"}, **device.get("basic", {})}


def _basic_device(device: Object) -> Object:
    basic = {name: value for name, value in device.items() if name != "name"}
    return {**({"name": device["name"]} if "name" in device else {}), "basic": basic}


def claim_to_stored(obj: Object, version: str) -> Object:
    """A ResourceClaim in v1's form."""
    return _requests(obj, ("spec",), _exact_request) if version == _OLD else obj


def claim_from_stored(obj: Object, version: str) -> Object:
    """A stored ResourceClaim in `version`."""
    return _requests(obj, ("spec",), _flat_request) if version == _OLD else obj


def template_to_stored(obj: Object, version: str) -> Object:
    """A ResourceClaimTemplate in v1's form."""
    return _requests(obj, ("spec", "spec"), _exact_request) if version == _OLD else obj


def template_from_stored(obj: Object, version: str) -> Object:
    """A stored ResourceClaimTemplate in `version`."""
    return _requests(obj, ("spec", "spec"), _flat_request) if version == _OLD else obj


def _requests(obj: Object, path: tuple[str, ...], convert: Callable[[Object], Object]) -> Object:
    changed: Object = _replaced(obj, (*path, "devices", "requests"), lambda found: [convert(item) for item in found])
    return changed


def _replaced(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of `value` with what is at `path` changed; `value` itself when nothing is there."""
    if not path:
        return change(value) if isinstance(value, list) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _replaced(value[path[0]], path[1:], change)}


def _exact_request(request: Object) -> Object:
    exactly = {name: request[name] for name in _EXACT_FIELDS if name in request}
    rest = {name: value for name, value in request.items() if name not in _EXACT_FIELDS}
    return {**rest, "exactly": exactly} if exactly else rest


def _flat_request(request: Object) -> Object:
    rest = {name: value for name, value in request.items() if name != "exactly"}
    return {**rest, "deviceClassName": "", **request.get("exactly", {})}
