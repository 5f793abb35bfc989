# SPDX-License-Identifier: Apache-2.0
"""The entries of this node's devices in a claim's `status.devices`: pure functions on its JSON, and their writes.

An entry has one condition of ours, `Ready`, and data that users look for: the UUID that CUDA and nvidia-smi show, for
a MIG device its profile and GPU, and the CDI devices. This part is the same in all served versions of
resource.k8s.io.

A write replaces the status that was read before, in which only conditions and data of the plugin are changed. If the
claim has changed since it was read, the API server refuses the write. So nothing that others wrote is lost, and no
entry that was removed comes back. `storedclaim` tells why the status is not patched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode

from dra_driver.gpu.policy import Enforcement
from dra_driver.kube.api import ApiError, Connection, Kind
from dra_driver.kube.api.answers import decode_answer
from dra_driver.kube.api.errors import StatusError, status_error
from dra_driver.kube.kinds import claims_of
from dra_driver.names import DRIVER_NAME

from ..claims.model import ClaimRef, EnforcedShare, Plan, Record
from ..claims.reader import ClaimReader
from ..claims.specs import cdi_names
from .storedclaim import PROTOBUF, StoredClaim, failure

JSON = dict[str, Any]

READY: Final = "Ready"
PREPARED: Final = "Prepared"
PREPARE_FAILED: Final = "PrepareFailed"

_LONGEST_MESSAGE: Final = 1024  # characters; the API allows more, but users do not read more

DeviceKey = tuple[str, str]
"""(Device, share ID or empty)."""

_NO_DATA: Final[Mapping[DeviceKey, JSON]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of preparing a claim: either all its devices are ready, or none. `data` has details of each device."""

    ready: bool
    message: str
    data: Mapping[DeviceKey, JSON] = field(default_factory=lambda: _NO_DATA)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What befell the devices of a prepared claim since, and whether they can be used."""

    ready: bool
    reason: str
    message: str


def condition(type_: str, holds: bool, reason: str, message: str, now: str) -> JSON:
    """A metav1.Condition with a change at `now` (RFC 3339)."""
    return {
        "type": type_,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…",
        "lastTransitionTime": now,
    }


def results(claim: Mapping[str, Any], pool: str) -> Iterator[JSON]:
    """The claim's allocated devices of this driver in `pool`."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        if result.get("driver") == DRIVER_NAME and result.get("pool") == pool:
            yield result


def entry(result: Mapping[str, Any], conditions: Sequence[JSON], data: JSON | None = None) -> JSON:
    """An entry of `status.devices` for an allocated device."""
    made = {name: result[name] for name in ("driver", "pool", "device", "shareID") if result.get(name)}
    return {**made, "conditions": list(conditions), **({"data": data} if data else {})}


def wanted_entries(claim: Mapping[str, Any], pool: str, outcome: Outcome | None, now: str) -> list[JSON] | None:
    """Our entries as they should be. None if the claim already has them.

    Without an outcome there should be no entries. A condition that has not changed keeps its time.
    """
    found = {key_of(item): item for item in entries(claim, pool)}
    wanted: dict[DeviceKey, JSON] = {}
    if outcome is not None:
        reason = outcome.reason or (PREPARED if outcome.ready else PREPARE_FAILED)
        ready = condition(READY, outcome.ready, reason, outcome.message, now)
        for result in results(claim, pool):
            key = key_of(result)
            kept = _transition(found.get(key), ready)
            wanted[key] = entry(result, [{**ready, "lastTransitionTime": kept or now}], outcome.data.get(key))
    current = {key: ours for key, item in found.items() if (ours := _ours(item)) is not None}
    return None if current == wanted else list(wanted.values())


def entries(claim: Mapping[str, Any], pool: str) -> list[JSON]:
    """The entries of `status.devices` for this driver's devices in `pool`, including those of other writers."""
    found = (claim.get("status") or {}).get("devices") or ()
    return [item for item in found if item.get("driver") == DRIVER_NAME and item.get("pool") == pool]


def key_of(item: Mapping[str, Any]) -> DeviceKey:
    """The key of an allocated device and of its entry."""
    return item.get("device", ""), item.get("shareID") or ""


def _ours(found: Mapping[str, Any]) -> JSON | None:
    """The part of an entry that this plugin writes, because other writers may have added conditions."""
    ready = [item for item in found.get("conditions") or () if item.get("type") == READY]
    return entry(found, ready, found.get("data")) if ready else None


def _transition(found: Mapping[str, Any] | None, ready: JSON) -> str | None:
    """The time since when the device has had this condition."""
    conditions = (found or {}).get("conditions") or ()
    same = (item for item in conditions if item.get("type") == READY and item.get("status") == ready["status"])
    return next((item.get("lastTransitionTime") for item in same), None)


def device_data(record: Record) -> dict[DeviceKey, JSON]:
    """The details of each device of a prepared claim, for users."""
    plan = record.plan
    return {
        (device.name, device.share_id or ""): {
            **device.kind.attributes(record.found.get(device.name, {})),
            "cdiDeviceIDs": cdi_names(plan.claim.uid, device),
            **_limits(plan.enforced(device)),
        }
        for device in plan.devices
    }


def shares_of(plan: Plan) -> Iterator[Mapping[str, str]]:
    """Each share of a claim, for metrics: who has it, and the limit of its memory in bytes."""
    for device in plan.devices:
        if device.share_id is not None:
            share = plan.enforced(device)
            memory = None if share is None else share.memory
            yield {
                "driver": DRIVER_NAME,
                "device": device.name,
                "share_id": device.share_id,
                "namespace": plan.claim.namespace,
                "claim": plan.claim.name,
                "enforced_by": str(Enforcement.NONE) if share is None else share.by,
                "limit": "" if memory is None else str(memory << 20),
            }


def _limits(share: EnforcedShare | None) -> JSON:
    """What enforces the device's share, and the limits."""
    if share is None:
        return {}
    limits: JSON = {"enforcedBy": str(share.by), "memoryLimit": f"{share.memory}Mi"}
    return limits if share.percentage is None else {**limits, "activeThreadPercentage": share.percentage}


class StatusIgnoredError(ApiError):
    """The server accepted the request but dropped `status.devices`."""


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an entry that one field manager writes: the conditions of these types, and the data."""

    manager: str
    types: frozenset[str]
    data: bool


class ClaimStatusApi(ClaimReader):
    """Reads claims and writes their device statuses, in the newest API version of the server."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    def read(self, ref: ClaimRef) -> StoredClaim:
        """The claim as the server stores it. Raises ApiError, for example NotFoundError."""

        def request(kind: Kind) -> StoredClaim:
            path = kind.path(ref.namespace, ref.name)
            response = self._connection.request("GET", path, accept=PROTOBUF)
            if not 200 <= response.status < 300:
                raise failure(f"GET {path}", response.status, response.data)
            try:
                return StoredClaim(response.data)
            except ValueError as error:
                raise StatusError(f"GET {path}", response.status, "", str(error)) from None

        return self.in_newest_version(request)

    def write(self, claim: StoredClaim, ref: ClaimRef, pool: str, entries: Sequence[JSON], part: Part) -> None:
        """Replace `part` of all entries of this driver's devices in `pool` by `entries`. Raises ApiError, for example
        ConflictError if the claim has changed since it was read.
        """
        claim.set_entries(DRIVER_NAME, pool, {key_of(item): item for item in entries}, part.types, data=part.data)
        path = claims_of(self.dialect()).path(ref.namespace, ref.name, "status")
        response = self._connection.request(
            "PUT",
            f"{path}?{urlencode({'fieldManager': part.manager})}",
            body=claim.encoded(),
            content_type=PROTOBUF,
        )
        if not 200 <= response.status < 300:
            raise status_error(f"PUT {path}", response.status, response.data)
        stored = (decode_answer(response.data).get("status") or {}).get("devices") or ()
        if entries and not any(item.get("driver") == DRIVER_NAME for item in stored):
            raise StatusIgnoredError("the API server drops it: feature gate DRAResourceClaimDeviceStatus is disabled")
