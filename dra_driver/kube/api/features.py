# SPDX-License-Identifier: Apache-2.0
"""The optional fields of a ResourceSlice that the API server stores.

A server silently drops the fields of a disabled feature gate. So the driver finds out with dry runs, which store
nothing, before it writes anything. Later it compares every answer to a write with what was sent.
"""

import logging
import re
from collections.abc import Set
from dataclasses import replace

from ..kinds import slices_of
from ..releases import known_since
from ..resource import (
    AttributeList,
    CounterSet,
    Device,
    DeviceTaint,
    ObjectMeta,
    Quantity,
    ResourcePool,
    ResourceSlice,
    TaintEffect,
)
from ..resource.codec import Dialect, decode_slice, encode_slice
from ..resource.device import COUNTERS_APART_SINCE, SliceFeatures
from ..resource.names import object_name
from .client import ApiClient
from .errors import StatusError

log = logging.getLogger(__name__)

GATES = {
    "partitionable_devices": "DRAPartitionableDevices",
    "device_taints": "DRADeviceTaints",
    "consumable_capacity": "DRAConsumableCapacity",
    "list_attributes": "DRAListTypeAttributes",
    "binding_conditions": "DRADeviceBindingConditions",
    "partition_type": "DRAPartitionableDevicesType",
}
"""The feature gate of each flag of SliceFeatures."""
OPTIONAL = frozenset(("list_attributes", "binding_conditions", "partition_type"))
"""Flags that only some policies need, or none. For others, the gate may be disabled."""
_PARTITION_TYPE_SINCE = known_since("DRAPartitionableDevicesType")

_BAD_REQUEST, _UNPROCESSABLE = 400, 422


def probe_features(
    client: ApiClient,
    dialect: Dialect,
    driver: str,
    node_name: str,
    *,
    lists: bool = False,
    suspected: Set[str] = frozenset(),
) -> SliceFeatures:
    """The fields of a driver's slices for a node that the server stores. List attributes are tested only if the policy
    wants `lists`. If a server refuses the dry run, all features except the `suspected` ones count as stored. Raises
    ApiError.
    """
    pool = ResourcePool(node_name, generation=0, resource_slice_count=1)
    name = object_name(f"probe-{driver}-{node_name}")
    empty = ResourceSlice(ObjectMeta(name=name), driver, pool, node_name=node_name)
    doubted = suspected | {"list_attributes", "partition_type"}
    counters = CounterSet("probe", {"probe": Quantity.of(1)})
    device = Device(
        "probe",
        taints=(DeviceTaint(f"{driver}/probe", TaintEffect.NO_SCHEDULE),),
        allow_multiple_allocations=True,
        binding_conditions=(f"{driver}/probe",),
        binding_failure_conditions=(f"{driver}/failed-probe",),
    )
    asked = [replace(empty, shared_counters=(counters,)), replace(empty, devices=(device,))]
    if lists:
        asked.append(replace(empty, devices=(Device("probe", {"probe": AttributeList("ints", (0,))}),)))
    minor = _minor_version(client)
    has_type = minor >= _PARTITION_TYPE_SINCE
    if has_type:
        typed = (Device("probe", {"profile": "probe"}),)
        asked.append(replace(empty, devices=typed, partition_type_attribute=f"{driver}/profile"))
    gone = frozenset[str]().union(*(_missing(client, dialect, slice_, doubted) for slice_ in asked))
    beside = minor < COUNTERS_APART_SINCE
    stored = SliceFeatures(list_attributes=lists, partition_type=has_type, counters_beside_devices=beside)
    return without(stored, gone)


def _missing(client: ApiClient, dialect: Dialect, asked: ResourceSlice, doubted: Set[str]) -> frozenset[str]:
    """The features of a slice that the server drops in a dry run. If the server refuses the slice, only `doubted`
    features count as dropped.
    """
    value = encode_slice(asked, dialect)
    try:
        answer = client.create(slices_of(dialect), value, dry_run=True)
    except StatusError as error:
        if error.status not in (_BAD_REQUEST, _UNPROCESSABLE):
            raise
        # The first write will show what this server drops. List attributes and the partition type are refused instead
        # of dropped.
        log.debug("asking what the API server keeps: %s", error)
        bare = tuple(Device(device.name) for device in asked.devices)
        return dropped(asked, replace(asked, devices=bare, shared_counters=(), partition_type_attribute=None)) & doubted
    return dropped(asked, decode_slice(answer, dialect, strict=False))


def dropped(sent: ResourceSlice, stored: ResourceSlice) -> frozenset[str]:
    """The flags of SliceFeatures whose fields are in `sent` and not in `stored`."""
    kept = {device.name: _used(device) for device in stored.devices}
    lost = frozenset[str]().union(
        *(_used(device) - kept[device.name] for device in sent.devices if device.name in kept)
    )
    if sent.shared_counters and not stored.shared_counters:
        lost |= {"partitionable_devices"}
    if sent.partition_type_attribute and not stored.partition_type_attribute:
        lost |= {"partition_type"}
    return lost


def _used(device: Device) -> frozenset[str]:
    """The flags of SliceFeatures that the device needs."""
    used = {
        "partitionable_devices": bool(device.consumes_counters),
        "device_taints": bool(device.taints),
        "consumable_capacity": device.allow_multiple_allocations,
        "list_attributes": any(isinstance(value, AttributeList) for value in device.attributes.values()),
        "binding_conditions": bool(device.binding_conditions),
    }
    return frozenset(flag for flag, needed in used.items() if needed)


def missing_gates(features: SliceFeatures, wanted: Set[str] = frozenset()) -> tuple[str, ...]:
    """The feature gates that are disabled on the server. Optional ones are included only if they are `wanted`."""
    needed = (flag for flag in GATES if flag in wanted or flag not in OPTIONAL)
    return tuple(GATES[flag] for flag in needed if not getattr(features, flag))


def without(features: SliceFeatures, gone: frozenset[str]) -> SliceFeatures:
    """The features without those in `gone`."""
    changes: dict[str, bool] = dict.fromkeys(gone, False)
    return replace(features, **changes)


def _minor_version(client: ApiClient) -> int:
    """The server's minor version. Some distributions write `34+`."""
    match = re.match(r"\d+", str(client.get_path("/version").get("minor", "")))
    return int(match[0]) if match else COUNTERS_APART_SINCE
