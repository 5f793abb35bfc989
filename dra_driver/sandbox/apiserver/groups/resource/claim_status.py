# SPDX-License-Identifier: Apache-2.0
"""A ResourceClaim's status: what may be allocated, reserved and reported, and by whom."""

from typing import Any, Final

from dra_driver.resource import limits

from ... import field_errors as errors
from ...kinds import Context
from ...objects import Object
from .. import meta
from . import rules
from .rules import Problems, RequestNames, reference_problems, references_problems

_SOURCES: Final = ("FromClaim", "FromClass")
_CONDITIONS: Final = 8
_DATA_BYTES: Final = 10 * 1024

DeviceId = tuple[str, str, str, str]
"""Driver, pool, device and share ID."""


def _status(claim: Object) -> Object:
    found: Object = claim.get("status") or {}
    return found


def results(claim: Object) -> list[Object]:
    """The devices that the claim has been given."""
    allocation = _status(claim).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def device_id(item: Object) -> DeviceId:
    """What an allocation result and a device status have in common."""
    return item.get("driver", ""), item.get("pool", ""), item.get("device", ""), item.get("shareID", "")


def drop_deallocated(new: Object, old: Object | None) -> None:
    """Removes the device status of devices that this write deallocates."""
    devices = _status(new).get("devices")
    if not devices:
        return
    gone = {device_id(result) for result in results(old or {})} - {device_id(result) for result in results(new)}
    kept = [device for device in devices if device_id(device) not in gone]
    if kept:
        new["status"]["devices"] = kept
    else:
        del new["status"]["devices"]


def authorization_problems(new: Object, old: Object, context: Context) -> Problems:
    """The finer permissions of 1.36: who may bind claims, and who may report on a driver's devices."""
    if context.authorize is None or not context.release.enabled("DRAResourceClaimGranularStatusAuthorization"):
        return
    before, after = _status(old), _status(new)
    if any((before.get(field) or None) != (after.get(field) or None) for field in ("allocation", "reservedFor")):
        refusal = context.authorize("", "binding", "", "")
        if refusal is not None:
            text = (
                "changing status.allocation or status.reservedFor requires "
                f'resource="resourceclaims/binding", {refusal}'
            )
            yield errors.forbidden("status.allocation", text)
    if not after.get("allocation"):
        return
    node = _only_node(after["allocation"])
    nearby = len(context.user.node_names) == 1 and context.user.node_names[0] == node
    prefixes = ("associated-node:", "arbitrary-node:") if nearby else ("arbitrary-node:",)
    for driver in sorted(_changed_drivers(before, after)):
        refusals = [
            context.authorize(prefix, "driver", new["metadata"].get("namespace", ""), driver) for prefix in prefixes
        ]
        if None not in refusals:
            text = f'changing status.devices requires resource="resourceclaims/driver", {refusals[0]}'
            yield errors.forbidden("status.devices", text)


def _changed_drivers(before: Object, after: Object) -> set[str]:
    old = {device_id(device): device for device in before.get("devices") or ()}
    new = {device_id(device): device for device in after.get("devices") or ()}
    return {key[0] for key in (*old, *new) if old.get(key) != new.get(key)}


def _only_node(allocation: Object) -> str | None:
    """The node whose devices were allocated, when they are of exactly one."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return None
    fields = terms[0].get("matchFields") or []
    if len(fields) != 1 or fields[0].get("key") != "metadata.name" or fields[0].get("operator") != "In":
        return None
    values = fields[0].get("values") or []
    return values[0] if len(values) == 1 else None


def validate(new: Object, old: Object, known: RequestNames) -> Problems:
    """What is wrong with a status, or with its change."""
    status, before = _status(new), _status(old)
    reserved = status.get("reservedFor") or []
    yield from rules.set_problems(
        reserved, rules.RESERVED_FOR, _consumer_problems, lambda user: user.get("uid", ""), "status.reservedFor"
    )
    allocated = {device_id(result) for result in results(new)}

    def device(item: Object, path: str) -> Problems:
        return _device_problems(item, path, allocated)

    yield from rules.set_problems(status.get("devices") or (), rules.UNLIMITED, device, device_id, "status.devices")
    allocation, previous = status.get("allocation"), before.get("allocation")
    if reserved and not allocation:
        yield errors.forbidden("status.reservedFor", "may not be specified when `allocated` is not set")
    elif new["metadata"].get("deletionTimestamp") and not _all_in(reserved, before.get("reservedFor") or []):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield errors.forbidden("status.reservedFor", text)
    if allocation and previous:
        if allocation != previous:
            yield errors.invalid("status.allocation", allocation, "field is immutable")
    elif allocation:
        yield from _allocation_problems(allocation, known)


def _all_in(items: list[Any], others: list[Any]) -> bool:
    return all(item in others for item in items)


def _consumer_problems(user: Object, path: str) -> Problems:
    for field in ("resource", "name", "uid"):
        if not user.get(field):
            yield errors.required(f"{path}.{field}")


def _allocation_problems(allocation: Object, known: RequestNames) -> Problems:
    devices, path = allocation.get("devices") or {}, "status.allocation.devices"

    def result(item: Object, here: str) -> Problems:
        yield from reference_problems(item.get("request", ""), f"{here}.request", known)
        yield from _device_name_problems(item, here)
        yield from rules.binding_problems(item, here)
        if item.get("shareID") is not None:
            yield from rules.uid_problems(item["shareID"], f"{here}.shareID")

    def config(item: Object, here: str) -> Problems:
        source = item.get("source", "")
        if not source:
            yield errors.required(f"{here}.source")
        elif source not in _SOURCES:
            yield errors.not_supported(f"{here}.source", source, _SOURCES)
        yield from references_problems(item.get("requests", ()), f"{here}.requests", known)
        yield from rules.device_configuration_problems(item, here)

    yield from rules.list_problems(devices.get("results", ()), limits.RESULTS_PER_CLAIM, result, f"{path}.results")
    configs = devices.get("config", ())
    yield from rules.list_problems(configs, 2 * rules.DEVICE_CONFIGS, config, f"{path}.config")
    if allocation.get("nodeSelector") is not None:
        yield from rules.node_selector_problems(allocation["nodeSelector"], "status.allocation.nodeSelector")


def _device_name_problems(item: Object, path: str) -> Problems:
    yield from rules.driver_problems(item.get("driver", ""), f"{path}.driver")
    yield from rules.pool_problems(item.get("pool", ""), f"{path}.pool")
    yield from rules.label_problems(item.get("device", ""), f"{path}.device")


def _device_problems(item: Object, path: str, allocated: set[DeviceId]) -> Problems:
    yield from _device_name_problems(item, path)
    if item.get("shareID") is not None:
        yield from rules.uid_problems(item["shareID"], f"{path}.shareID")
    if device_id(item) not in allocated:
        shown = "/".join(part for part in device_id(item) if part)
        yield errors.invalid(path, shown, "must be an allocated device in the claim")
    conditions = item.get("conditions") or []
    if len(conditions) > _CONDITIONS:
        yield errors.too_many(f"{path}.conditions", len(conditions), _CONDITIONS)
    yield from meta.condition_problems(conditions, f"{path}.conditions")
    if item.get("data") is not None:
        yield from rules.raw_object_problems(item["data"], f"{path}.data", _DATA_BYTES)
