# SPDX-License-Identifier: Apache-2.0
"""A ResourceClaim in the encoding in which the API server keeps it (protobuf), so that a write changes nothing else.

The allocation has a copy of the claim's opaque parameters, whose bytes the API server compares: they are immutable.
Server-side apply and strategic merge patch sort their keys and rewrite their numbers; JSON Patch, merge patch and an
update in JSON drop white space and escape `<`, `>` and `&`. Each is refused with `status.allocation: field is
immutable` if that makes a difference. Only protobuf transports these parameters as bytes. Fields that the plugin does
not know are unknown fields of the message, which keep their bytes, too.

Format: https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
"""

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from dra_driver.kube.api import StatusError
from dra_driver.kube.api.errors import error_of_status, status_error

from ..protocol import claim_pb2

JSON = dict[str, Any]

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"

DeviceKey = tuple[str, str]
"""(Device, share ID or empty)."""


class StoredClaim:
    """A claim as the API server sent it. Raises ValueError if `body` is none."""

    def __init__(self, body: bytes) -> None:
        self._envelope = claim_pb2.Envelope()
        self._claim = claim_pb2.Claim()
        _parse(self._envelope, _without_magic(body))
        _parse(self._claim, self._envelope.raw)

    @property
    def uid(self) -> str:
        """The UID of the claim."""
        return self._claim.metadata.uid

    def view(self) -> JSON:
        """The fields that the plugin reads, as JSON: names, consumers, allocated devices and their status."""
        meta, status = self._claim.metadata, self._claim.status
        results = [_filled(_result(result)) for result in status.allocation.devices.results]
        return {
            "apiVersion": self._envelope.type.api_version,
            "kind": self._envelope.type.kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "status": {
                **({"allocation": {"devices": {"results": results}}} if status.HasField("allocation") else {}),
                "reservedFor": [
                    _filled({"apiGroup": user.api_group, "resource": user.resource, "name": user.name, "uid": user.uid})
                    for user in status.reserved_for
                ],
                "devices": [_entry(device) for device in status.devices],
            },
        }

    def set_entries(
        self, driver: str, pool: str, entries: Mapping[DeviceKey, JSON], types: Collection[str], *, data: bool
    ) -> None:
        """Set the conditions of these `types`, and with `data` the data, of the driver's devices in `pool`.

        A device that has no entry in `entries` loses them, and its status if nothing else is in it. All other
        conditions, fields and entries stay.
        """
        wanted = dict(entries)
        kept = []
        for device in self._claim.status.devices:
            if (device.driver, device.pool) == (driver, pool):
                held = len(device.conditions), device.HasField("data")
                _set(device, wanted.pop((device.device, device.share_id), {}), types, data=data)
                if held != (0, False) and not (
                    device.conditions or device.HasField("data") or device.HasField("network_data")
                ):
                    continue
            kept.append(device)
        for (name, share), entry in wanted.items():
            device = claim_pb2.DeviceStatus(driver=driver, pool=pool, device=name, share_id=share or None)
            _set(device, entry, types, data=data)
            kept.append(device)
        del self._claim.status.devices[:]
        self._claim.status.devices.extend(kept)

    def encoded(self) -> bytes:
        """The claim as the body of an update. It has the resourceVersion that was read, so a claim that has changed
        since is not overwritten.
        """
        self._envelope.raw = self._claim.SerializeToString()
        return _MAGIC + self._envelope.SerializeToString()


def failure(request: str, status: int, body: bytes) -> StatusError:
    """The error of an answer in protobuf, or in the form of a proxy."""
    envelope, found = claim_pb2.Envelope(), claim_pb2.Failure()
    try:
        _parse(envelope, _without_magic(body))
        _parse(found, envelope.raw)
    except ValueError:
        return status_error(request, status, body)
    value = {"code": found.code, "reason": found.reason, "message": found.message}
    return error_of_status(request, value, status)


def _without_magic(body: bytes) -> bytes:
    if not body.startswith(_MAGIC):
        raise ValueError(f"the answer begins with {body[:20]!r} and is not Kubernetes' protobuf")
    return body[len(_MAGIC) :]


def _parse(message: Message, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"the answer cannot be parsed as Kubernetes' protobuf: {error}") from None


def _filled(value: JSON) -> JSON:
    return {name: item for name, item in value.items() if item}


def _result(result: claim_pb2.AllocatedDevice) -> JSON:
    return {
        "driver": result.driver,
        "pool": result.pool,
        "device": result.device,
        "shareID": result.share_id,
        "bindingConditions": list(result.binding_conditions),
        "tolerations": [
            _filled(
                {
                    "key": toleration.key,
                    "operator": toleration.operator,
                    "value": toleration.value,
                    "effect": toleration.effect,
                }
            )
            for toleration in result.tolerations
        ],
    }


def _entry(device: claim_pb2.DeviceStatus) -> JSON:
    conditions = [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": _text_of(condition.last_transition_time.seconds),
        }
        for condition in device.conditions
    ]
    key = _filled({"driver": device.driver, "pool": device.pool, "device": device.device, "shareID": device.share_id})
    return {**key, "conditions": conditions, **_filled({"data": _data(device)})}


def _text_of(seconds: int) -> str:
    """A time as text. Empty for none, and for one that other writers put there and that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(_TIME) if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""


def _data(device: claim_pb2.DeviceStatus) -> Any:
    """The data of an entry. None if there is none that can be read; other writers may have put anything there."""
    try:
        return json.loads(device.data.raw) if device.HasField("data") else None
    except (ValueError, RecursionError):
        return None


def _set(device: claim_pb2.DeviceStatus, entry: Mapping[str, Any], types: Collection[str], *, data: bool) -> None:
    kept = [condition for condition in device.conditions if condition.type not in types]
    del device.conditions[:]
    device.conditions.extend([*kept, *map(_condition, entry.get("conditions") or ())])
    if data:
        device.ClearField("data")
        if entry.get("data"):
            device.data.raw = json.dumps(entry["data"], separators=(",", ":")).encode()


def _condition(value: Mapping[str, Any]) -> claim_pb2.Condition:
    moment = datetime.strptime(value["lastTransitionTime"], _TIME).replace(tzinfo=UTC)
    return claim_pb2.Condition(
        type=value["type"],
        status=value["status"],
        reason=value["reason"],
        message=value["message"],
        last_transition_time=claim_pb2.Time(seconds=int(moment.timestamp())),
    )
