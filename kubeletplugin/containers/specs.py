# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of claims, one a claim with its devices.

A container asks for the node's common spec (see common) beside its claims', so these stay small.
"""

import logging

from dra_driver import cdi

from ..hardware.targets import MigSlot, PrepareError
from ..records.store import Record
from .common import CommonSpec
from .metadata import SpecMetadata

log = logging.getLogger(__name__)


class ClaimSpecs:
    """CDI specs beside the `common` one, describing the same driver."""

    def __init__(self, common: CommonSpec, metadata: SpecMetadata | None = None) -> None:
        self._common = common
        self._metadata = metadata
        # A claim's spec needs no sync: it goes with a reboot, as everything it speaks of does.
        self._claims = cdi.SpecDirectory(common.directory, cdi.CLAIM_KIND, sync=False)

    def remove_half_written(self) -> None:
        """Remove what somebody who was killed left half written. Nobody may be writing specs meanwhile."""
        self._claims.remove_leftovers()
        self._common.remove_half_written()

    def ensure(self, record: Record) -> None:
        """Write what is missing of the claim's spec and the common one. Raises as `write` does."""
        if self.exists(record.plan.claim.uid):
            self._common.restore()
        else:
            self.write(record)

    def write(self, record: Record) -> None:
        """Describe the claim's devices. Raises PrepareError when one cannot be described, or OSError."""
        self._common.restore()
        uid = record.plan.claim.uid
        edits: dict[str, cdi.ContainerEdits] = {}
        for device in record.plan.devices:
            try:
                edits[device.name] = self._edits(device.name, record)
            except cdi.DriverFilesError as error:
                raise PrepareError(f"device {device.name}: {error}") from None
        if edits and self._metadata is not None:
            edits |= self._metadata.edits(record)
        if edits:
            self._claims.write(cdi.claim_spec(uid, edits), uid)

    def exists(self, uid: str) -> bool:
        """Whether there is a file for the claim's spec."""
        return self._claims.file(uid).is_file()

    def devices(self, uid: str) -> set[str]:
        """The names of the devices that the claim's spec describes; none when it is not there, or no valid spec."""
        try:
            spec = self._claims.read(uid)
        except cdi.SpecError as error:
            log.warning("%s", error)
            return set()
        return {one.name.removeprefix(f"{uid}-") for one in spec.devices} if spec is not None else set()

    def remove(self, uid: str) -> bool:
        """Remove the claim's spec; False when there is none, whatever else is wrong with the directory."""
        removed = self._claims.remove(uid)
        if self._metadata is not None:
            self._metadata.remove(uid)
        return removed

    def claims(self) -> list[str]:
        """The UIDs of all claims that have a spec."""
        files = self._metadata.claims() if self._metadata is not None else []
        return sorted({*self._claims.identifiers(), *files})

    def _edits(self, name: str, record: Record) -> cdi.ContainerEdits:
        root, hook = self._common.root, self._common.hook
        target = next(one.target for one in record.plan.devices if one.name == name)
        if isinstance(target, MigSlot):
            ids = record.instances[name]
            found = cdi.mig_edits(root, target.minor, ids.gpu_instance, ids.compute_instance, target.pci_address, hook)
        else:
            found = cdi.gpu_edits(root, target.minor, target.pci_address, hook)
        return found.edits


def cdi_names(uid: str, device: str) -> list[str]:
    """What a container asks its runtime for to get `device` of the claim. Its own name comes first: kubelet reports the
    health of a device under the first one, and takes devices with the same for one.
    """
    return [cdi.claim_device(uid, device), cdi.BASE_DEVICE]
