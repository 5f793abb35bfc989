# SPDX-License-Identifier: Apache-2.0
"""kubelet's decisions about claims: which claim, may the pod use it, is a plugin's answer whole, which CDI ids.

Pure functions; the texts are those that users see in kubelet's events and logs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import grpc

from dra_driver.resource import ResourceClaim

from .model import Container, Pod, PodClaim
from .wire import ClaimAnswer, ClaimRef, PreparedDevice

PREPARE = "NodePrepareResources"
UNPREPARE = "NodeUnprepareResources"


class ClaimError(Exception):
    """Why dynamic resources of a pod cannot be prepared or unprepared, in kubelet's words."""


@dataclass(frozen=True, slots=True)
class ClaimName:
    """The claim behind an entry of a pod; `generated` ones must belong to the pod."""

    name: str
    generated: bool = False


def claim_name(pod: Pod, entry: PodClaim) -> ClaimName | None:
    """Which claim `entry` of the pod means, None when none was needed. Raises ClaimError while there is none yet."""
    if entry.claim_name is not None:
        return ClaimName(entry.claim_name)
    if entry.template_name is None:
        raise ClaimError(f'pod "{pod}", spec.resourceClaim "{entry.name}": none of the supported fields are set')
    if entry.name not in pod.generated_claims:
        raise ClaimError(f'pod "{pod}": ResourceClaim not created yet')
    name = pod.generated_claims[entry.name]
    return None if name is None else ClaimName(name, generated=True)


def claim_names(pod: Pod) -> tuple[ClaimName, ...]:
    """All claims of a pod, in the order kubelet looks at them; the one for extended resources comes last."""
    named = [name for entry in pod.claims if (name := claim_name(pod, entry)) is not None]
    return (*named, ClaimName(pod.extended_claim)) if pod.extended_claim else tuple(named)


def check_claim(pod: Pod, wanted: ClaimName, claim: ResourceClaim) -> frozenset[str]:
    """The drivers to call for a claim of the pod. Raises ClaimError when the pod may not use the claim."""
    meta = claim.metadata
    if wanted.generated and not any(owner.controller and owner.uid == pod.uid for owner in meta.owner_references):
        raise ClaimError(f"ResourceClaim {meta} was not created for Pod {pod} (Pod is not owner)")
    if not any(consumer.uid == pod.uid for consumer in claim.reserved_for):
        raise ClaimError(f"pod {pod.name} ({pod.uid}) is not allowed to use ResourceClaim {meta.name} ({meta.uid})")
    if claim.allocation is None:
        raise ClaimError(f"ResourceClaim {meta.name}: not allocated")
    # drivers that only appear in allocation.devices.config have nothing to prepare
    return frozenset(result.driver for result in claim.allocation.results)


def check_answer(method: str, asked: Iterable[ClaimRef], answer: Mapping[str, ClaimAnswer]) -> None:
    """Raises ClaimError unless `answer` has exactly the claims that were asked for, each without an error."""
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
    """A gRPC error as kubelet's library prints it."""
    assert isinstance(error, grpc.Call)
    code = error.code().name
    name = "Canceled" if code == "CANCELLED" else code.title().replace("_", "")
    details = "context deadline exceeded" if error.details() == "Deadline Exceeded" else error.details()
    return f"rpc error: code = {name} desc = {details}"


def device_serves(device: PreparedDevice, request: str) -> bool:
    """Whether a container that names `request` (empty: all of them) gets the device.

    The comparison is literal, so a subrequest left in a device's request names (`req/sub`) hides the
    device from every container that names the request.
    """
    return not request or not device.request_names or request in device.request_names


def cdi_ids(pod: Pod, container: Container, prepared: Mapping[str, Iterable[PreparedDevice]]) -> tuple[str, ...]:
    """What kubelet hands the runtime as CDI devices of a container, duplicates included.

    `prepared` maps claim names to the devices of all drivers. Raises ClaimError for a claim that is not in it.
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
