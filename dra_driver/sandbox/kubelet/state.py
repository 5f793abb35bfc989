# SPDX-License-Identifier: Apache-2.0
"""The claims of this node, in memory and in the checkpoint `dra_manager_state`, and decisions about them.

Like kubelet's file, it does not record whether a claim is prepared, so a new kubelet calls the plugins again.

The decisions are pure functions: which claim a pod uses, whether the pod may use it, whether a plugin's answer is
complete, and the resulting CDI devices. Their texts are those of kubelet's Events and logs.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc

from dra_driver.resource import ResourceClaim

from .model import Container, Pod, PodClaim
from .wire import ClaimAnswer, ClaimRef, PreparedDevice


class CheckpointError(Exception):
    """The checkpoint is unusable. The node has to be drained and the file removed."""


@dataclass(frozen=True, slots=True)
class ClaimInfo:
    """A claim that is prepared on this node, or is about to be. `devices` has a key for every driver to call."""

    ref: ClaimRef
    pods: frozenset[str] = frozenset()
    devices: Mapping[str, tuple[PreparedDevice, ...]] = field(default_factory=lambda: MappingProxyType({}))
    prepared: bool = False

    @property
    def all_devices(self) -> tuple[PreparedDevice, ...]:
        """The devices of all drivers."""
        return tuple(device for devices in self.devices.values() for device in devices)


class ClaimCache:
    """The claims by (namespace, name). Take `lock` for several steps that belong together."""

    def __init__(self, checkpoint: Path) -> None:
        """Read `checkpoint` if it exists. Raises CheckpointError if it is damaged."""
        self._path = checkpoint
        self._lock = threading.RLock()
        self._claims = {(info.ref.namespace, info.ref.name): info for info in load(checkpoint)}

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The reentrant lock of the cache."""
        return self._lock

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """Return the claim of that name. It may be older than the claim in the API server."""
        with self._lock:
            return self._claims.get((namespace, name))

    def all(self) -> tuple[ClaimInfo, ...]:
        """Return all claims."""
        with self._lock:
            return tuple(self._claims.values())

    def of_pod(self, uid: str) -> tuple[ClaimInfo, ...]:
        """Return the claims that a pod uses."""
        return tuple(info for info in self.all() if uid in info.pods)

    def put(self, info: ClaimInfo) -> None:
        """Add or replace a claim in memory."""
        with self._lock:
            self._claims[info.ref.namespace, info.ref.name] = info

    def remove(self, ref: ClaimRef) -> None:
        """Remove a claim from memory."""
        with self._lock:
            self._claims.pop((ref.namespace, ref.name), None)

    def save(self) -> None:
        """Write the checkpoint. Raises OSError."""
        with self._lock:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(encode(self._claims.values()), encoding="utf-8")
            temporary.replace(self._path)


def encode(claims: Iterable[ClaimInfo]) -> str:
    """Return the text of the checkpoint."""
    return json.dumps(
        [
            {
                "ref": asdict(info.ref),
                "pods": sorted(info.pods),
                "devices": {driver: [asdict(device) for device in found] for driver, found in info.devices.items()},
            }
            for info in claims
        ]
    )


def decode(text: str) -> tuple[ClaimInfo, ...]:
    """Return the claims in a checkpoint's text. None of them is marked as prepared. Raises CheckpointError."""
    try:
        return tuple(
            ClaimInfo(
                ClaimRef(**one["ref"]),
                frozenset(one["pods"]),
                {driver: tuple(map(_device, devices)) for driver, devices in one["devices"].items()},
            )
            for one in json.loads(text)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint: {error!r}") from error


def _device(raw: Mapping[str, Any]) -> PreparedDevice:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return PreparedDevice(**fields)


def load(path: Path) -> tuple[ClaimInfo, ...]:
    """Return the claims in a checkpoint file, or none without a file. Raises CheckpointError."""
    try:
        return decode(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}; drain the node and remove the file") from error


PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"


class ClaimError(Exception):
    """Claims of a pod cannot be prepared or unprepared. The text is kubelet's."""


@dataclass(frozen=True, slots=True)
class ClaimName:
    """The claim of an entry of a pod. A `generated` claim must belong to the pod."""

    name: str
    generated: bool = False


def claim_name(pod: Pod, entry: PodClaim) -> ClaimName | None:
    """Return the claim of an `entry` of the pod, or None if no claim was needed.

    Raises ClaimError if the claim does not exist yet.
    """
    if entry.claim_name is not None:
        return ClaimName(entry.claim_name)
    if entry.template_name is None:
        raise ClaimError(f'pod "{pod}", spec.resourceClaim "{entry.name}": none of the supported fields are set')
    if entry.name not in pod.generated_claims:
        raise ClaimError(f'pod "{pod}": ResourceClaim not created yet')
    name = pod.generated_claims[entry.name]
    return None if name is None else ClaimName(name, generated=True)


def claim_names(pod: Pod) -> tuple[ClaimName, ...]:
    """Return all claims of a pod in kubelet's order. The claim for extended resources comes last."""
    named = [name for entry in pod.claims if (name := claim_name(pod, entry)) is not None]
    return (*named, ClaimName(pod.extended_claim)) if pod.extended_claim else tuple(named)


def check_claim(pod: Pod, wanted: ClaimName, claim: ResourceClaim) -> frozenset[str]:
    """Return the drivers to call for a claim of the pod. Raises ClaimError if the pod may not use the claim."""
    meta = claim.metadata
    if wanted.generated and not any(owner.controller and owner.uid == pod.uid for owner in meta.owner_references):
        raise ClaimError(f"ResourceClaim {meta} was not created for Pod {pod} (Pod is not owner)")
    if not any(consumer.uid == pod.uid for consumer in claim.reserved_for):
        raise ClaimError(f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {meta.name} ({meta.uid})")
    if claim.allocation is None:
        raise ClaimError(f"ResourceClaim {meta.name}: not allocated")
    # drivers that occur only in allocation.devices.config have nothing to prepare
    return frozenset(result.driver for result in claim.allocation.results)


def check_answer(method: str, asked: Iterable[ClaimRef], answer: Mapping[str, ClaimAnswer]) -> None:
    """Raise ClaimError unless `answer` has exactly the claims in `asked`, each without an error."""
    claims = list(asked)
    names = {claim.uid: claim.name for claim in claims}
    for uid, claim in answer.items():
        if uid not in names:
            raise ClaimError(f"{method} returned result for unknown claim UID {uid}")
        if claim.error:
            raise ClaimError(f"{method} failed for ResourceClaim {names[uid]}: {claim.error}")
    if skipped := len(claims) - len(answer):
        raise ClaimError(f"{method} skipped {skipped} ResourceClaims")


def rpc_text(error: grpc.RpcError) -> str:
    """Return the text of a gRPC error in kubelet's library."""
    assert isinstance(error, grpc.Call)
    code = error.code().name
    name = "Canceled" if code == "CANCELLED" else code.title().replace("_", "")
    details = "context deadline exceeded" if error.details() == "Deadline Exceeded" else error.details()
    return f"rpc error: code = {name} desc = {details}"


def device_serves(device: PreparedDevice, request: str) -> bool:
    """Return whether a container that names `request` (empty: all requests) gets the device.

    The comparison is literal. If a device's request names contain a subrequest (`req/sub`), containers that name
    the request do not get the device.
    """
    return not request or not device.request_names or request in device.request_names


def cdi_ids(pod: Pod, container: Container, prepared: Mapping[str, Iterable[PreparedDevice]]) -> tuple[str, ...]:
    """Return the CDI devices of a container that kubelet passes to the runtime, including duplicates.

    `prepared` has the devices of all drivers by claim name. Raises ClaimError for a claim that is not in it.
    """
    wanted = [
        (claim.name, use.request)
        for entry in pod.claims
        for use in container.claims
        if use.name == entry.name and (claim := claim_name(pod, entry)) is not None
    ]
    wanted += [
        (pod.extended_claim, mapping.request)
        for mapping in pod.extended_requests
        if pod.extended_claim and mapping.container == container.name and mapping.resource in container.requested
    ]
    ids: list[str] = []
    for name, request in wanted:
        if name not in prepared:
            raise ClaimError(
                f"internal error: unable to get claim info for ResourceClaim {name} in namespace {pod.namespace}"
            )
        ids += [id for device in prepared[name] if device_serves(device, request) for id in device.cdi_ids]
    return tuple(ids)
