# SPDX-License-Identifier: Apache-2.0
"""The claims of this node, in memory and in the checkpoint `dra_manager_state`, and decisions about them.

Like kubelet's file, it does not record whether a claim is prepared, so a new kubelet calls the plugins again.

The decisions are pure functions: which claim a pod uses, whether the pod may use it, whether a plugin's answer is
complete, and the resulting CDI devices. Their texts are those of kubelet's Events and logs.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc

from dra_driver.kube.resource import ConsumerReference, ResourceClaim

from .model import Container, KubeletPod, PodClaim
from .wire import ClaimAnswer, ClaimRef, PreparedDevice

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"


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
    """The claims by (namespace, name). Take the reentrant `lock` for several steps that belong together."""

    def __init__(self, checkpoint: Path) -> None:
        """Read `checkpoint` if it exists. Raises CheckpointError if it is damaged."""
        self._path = checkpoint
        self.lock = threading.RLock()
        self._claims = {(info.ref.namespace, info.ref.name): info for info in load(checkpoint)}

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """Return the claim of that name. It may be older than the claim in the API server."""
        with self.lock:
            return self._claims.get((namespace, name))

    def known(self, namespace: str, name: str) -> ClaimInfo:
        """Return the claim of that name. Raises ClaimError if there is none."""
        info = self.get(namespace, name)
        if info is None:
            raise ClaimError(
                f"internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}"
            )
        return info

    def all(self) -> tuple[ClaimInfo, ...]:
        """Return all claims."""
        with self.lock:
            return tuple(self._claims.values())

    def put(self, info: ClaimInfo) -> None:
        """Add or replace a claim in memory."""
        with self.lock:
            self._claims[info.ref.namespace, info.ref.name] = info

    def remove(self, ref: ClaimRef) -> None:
        """Remove a claim from memory."""
        with self.lock:
            self._claims.pop((ref.namespace, ref.name), None)

    def save(self) -> None:
        """Write the checkpoint. Raises OSError."""
        with self.lock:
            claims = [
                {
                    "ref": asdict(info.ref),
                    "pods": sorted(info.pods),
                    "devices": {driver: [asdict(device) for device in found] for driver, found in info.devices.items()},
                }
                for info in self._claims.values()
            ]
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps(claims), encoding="utf-8")
            temporary.replace(self._path)


def load(path: Path) -> tuple[ClaimInfo, ...]:
    """Return the claims in a checkpoint, or none without a file. None of them is prepared. Raises CheckpointError."""
    try:
        return tuple(
            ClaimInfo(
                ClaimRef(**entry["ref"]),
                frozenset(entry["pods"]),
                {driver: tuple(map(_device, devices)) for driver, devices in entry["devices"].items()},
            )
            for entry in json.loads(path.read_text(encoding="utf-8"))
        )
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint: {error!r}; drain the node and remove the file") from error


def _device(raw: Mapping[str, Any]) -> PreparedDevice:
    return PreparedDevice(raw["pool"], raw["device"], tuple(raw["request_names"]), tuple(raw["cdi_ids"]))


class ClaimError(Exception):
    """Claims of a pod cannot be prepared or unprepared. The text is kubelet's."""


def claims_of(pod: KubeletPod) -> tuple[PodClaim, ...]:
    """Return the pod's claims in kubelet's order. Raises ClaimError if one of them does not exist yet."""
    if not all(entry.created for entry in pod.claims):
        raise ClaimError(f'pod "{pod}": ResourceClaim not created yet')
    return tuple(entry for entry in pod.claims if entry.claim)


def check_claim(pod: KubeletPod, wanted: PodClaim, claim: ResourceClaim) -> frozenset[str]:
    """Return the drivers to call for a claim of the pod. Raises ClaimError if the pod may not use the claim."""
    meta = claim.metadata
    owners = [owner for owner in meta.owner_references if owner.controller]
    of_group = bool(pod.group) and any((owner.kind, owner.name) == ("PodGroup", pod.group) for owner in owners)
    if wanted.generated and not of_group and not any(owner.uid == pod.uid for owner in owners):
        raise ClaimError(f"ResourceClaim {meta} was not created for Pod {pod} (Pod is not owner)")
    if not any(_is_for(pod, consumer) for consumer in claim.reserved_for):
        raise ClaimError(f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {meta.name} ({meta.uid})")
    if claim.allocation is None:
        raise ClaimError(f"ResourceClaim {meta.name}: not allocated")
    # drivers that occur only in allocation.devices.config have nothing to prepare
    return frozenset(result.driver for result in claim.allocation.results)


def _is_for(pod: KubeletPod, consumer: ConsumerReference) -> bool:
    """Return whether a claim that is reserved for the consumer may be used by the pod: itself, or its PodGroup."""
    if consumer.resource == "podgroups":
        return bool(pod.group) and consumer.name == pod.group
    return consumer.uid == pod.uid


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


def cdi_ids(pod: KubeletPod, container: Container, claims: ClaimCache) -> tuple[str, ...]:
    """Return the CDI devices of a container that kubelet passes to the runtime, including duplicates.

    Raises ClaimError for a claim that was not prepared.
    """
    return tuple(
        id
        for entry in claims_of(pod)
        for use in container.claims
        if use.name == entry.name
        for device in claims.known(pod.namespace, entry.claim).all_devices
        if device_serves(device, use.request)
        for id in device.cdi_ids
    )
