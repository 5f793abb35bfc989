# SPDX-License-Identifier: Apache-2.0
"""The prepared devices of a claim in the form in which kubelet gets them."""

from dataclasses import dataclass

from ..containers import cdi
from ..containers.metadata import MetadataFiles, metadata_names
from .model import Plan
from .specs import cdi_names


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device of a claim: its request, its pool and name, and the CDI devices that containers need for it."""

    request: str
    pool: str
    name: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


def prepared_devices(
    plan: Plan, files: MetadataFiles | None = None, kind: str = cdi.CLAIM_KIND
) -> list[PreparedDevice]:
    """The devices of a prepared plan, with the CDI `kind` of the driver. The metadata file of a request, if there are
    such `files`, comes with its first device.
    """
    uid = plan.claim.uid
    metadata = metadata_names(uid, files.requests(uid)) if files is not None else {}
    return [
        PreparedDevice(
            device.request,
            plan.pool,
            device.name,
            (*cdi_names(uid, device, kind), *metadata.pop(device.request, ())),
            device.share_id,
        )
        for device in plan.given()
    ]
