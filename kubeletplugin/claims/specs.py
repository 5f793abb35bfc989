# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of claims: what containers need for each device, as its kind and the claim's steps tell."""

import logging

from ..containers import cdi
from ..containers.common import CommonSpec
from ..errors import PrepareError
from ..node.node import Node
from .metadata import ClaimMetadata
from .model import Device, Record, SpecPlace

log = logging.getLogger(__name__)


class ClaimSpecs:
    """The specs of claims on `node`, of the CDI `kind`, for the same NVIDIA driver as the `common` spec, and with the
    devices for `metadata` files, if there are any.
    """

    def __init__(
        self, node: Node, common: CommonSpec, metadata: ClaimMetadata | None = None, kind: str = cdi.CLAIM_KIND
    ) -> None:
        self._node = node
        self._common = common
        self._metadata = metadata
        # The spec of a claim needs no fsync, because neither the spec nor its devices are used after a reboot.
        self._kind = kind
        self._claims = cdi.SpecDirectory(common.directory, kind, sync=False)

    def remove_half_written(self) -> None:
        """Remove incomplete files of a process that was killed. No other process may be writing specs."""
        self._claims.remove_leftovers()
        if self._kind == cdi.CLAIM_KIND:  # the driver for GPUs writes the common spec
            self._common.remove_half_written()

    def ensure(self, record: Record) -> None:
        """Write the claim's spec and the common spec if they are missing. Raises the errors of `write`."""
        if self.exists(record.plan.claim.uid):
            self._common.restore()
        else:
            self.write(record)

    def write(self, record: Record) -> None:
        """Write the spec of the claim's devices. Raises PrepareError if a device cannot be described, or OSError."""
        self._common.restore()
        place = SpecPlace(record, self._node, self._common.root, self._common.hook)
        uid = record.plan.claim.uid
        edits: dict[str, cdi.ContainerEdits] = {}
        for device in record.plan.devices:
            if not device.kind.is_given:
                continue
            try:
                edits[device.cdi_name] = _edits(place, device)
            except cdi.DriverFilesError as error:
                raise PrepareError(f"device {device.name}: {error}") from None
        if edits and self._metadata is not None:
            edits |= self._metadata.edits(record)
        if edits:
            self._claims.write(self._common.runtime.readable(cdi.claim_spec(uid, edits, self._kind)), uid)

    def exists(self, uid: str) -> bool:
        """Whether the claim's spec exists."""
        return self._claims.exists(uid)

    def devices(self, uid: str) -> set[str]:
        """The CDI names of the devices in the claim's spec, without the UID. Empty if there is no valid spec."""
        try:
            names = self._claims.devices(uid)
        except cdi.SpecError as error:
            log.warning("%s", error)
            return set()
        return {name.removeprefix(f"{uid}-") for name in names}

    def remove(self, uid: str) -> bool:
        """Remove the claim's spec. False if there is none."""
        removed = self._claims.remove(uid)
        if self._metadata is not None:
            self._metadata.remove(uid)
        return removed

    def claims(self) -> list[str]:
        """The UIDs of all claims with a spec."""
        files = self._metadata.claims() if self._metadata is not None else []
        return sorted({*self._claims.identifiers(), *files})


def _edits(place: SpecPlace, device: Device) -> cdi.ContainerEdits:
    edits = device.kind.edits(place, device)
    for step in place.record.plan.steps:
        edits += step.edits(place, device)
    return edits


def cdi_names(uid: str, device: Device, kind: str = cdi.CLAIM_KIND) -> list[str]:
    """The CDI names that a container needs to get `device` of the claim, with the CDI `kind` of the driver. The
    device's own name comes first, because kubelet reports the health of a device under its first CDI name, and treats
    devices with the same first name as one.
    """
    if not device.kind.is_given:
        return []
    own = cdi.claim_device(uid, device.cdi_name, kind)
    return [own, cdi.BASE_DEVICE] if device.kind.NEEDS_DRIVER_FILES else [own]
