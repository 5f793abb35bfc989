# SPDX-License-Identifier: Apache-2.0
"""The CDI specs: one for each claim with its devices, and the common one that every container needs.

The common spec has libraries, control nodes, sockets of daemons and hooks. Containers request it by name in addition
to the spec of their claim, so the specs of claims stay small. No container starts while the common spec is missing or
mounts a file that no longer exists. So it is written when an NVIDIA driver is found, and again whenever the node
changes: for example, nvidia-persistenced started or stopped, a module was loaded, or the spec was deleted.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from dra_driver import cdi

from ..hardware.targets import MigSlot, PrepareError
from ..records.store import Record
from .metadata import SpecMetadata
from .mps import mps_edits

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0


class CommonSpec:
    """The spec in `directory`, for the driver at `root`. Methods may be called from several threads.

    The hook program is `hook`, or else the first one below `hook_roots`, which may come later or go.
    """

    def __init__(
        self,
        directory: Path,
        root: cdi.DriverRoot,
        hook: cdi.HookTool | None = None,
        hook_roots: Sequence[cdi.Root] = (),
    ) -> None:
        self.directory = directory
        self.root = root
        self._given_hook = hook
        self._hook_roots = () if hook else tuple(hook_roots)
        self._hook = hook
        self._specs = cdi.SpecDirectory(directory, cdi.BASE_KIND)
        self._lock = threading.Lock()
        self._driver_version = ""
        self._seen: cdi.Fingerprint | None = None
        self._problem: str | None = None

    @property
    def hook(self) -> cdi.HookTool | None:
        """The hook program as of the last time that the spec was written."""
        return self._hook

    def write(self, driver_version: str) -> None:
        """Describe the node with this driver. Raises PrepareError without the driver's files, or OSError."""
        with self._lock:
            self._write(driver_version)

    def restore(self) -> None:
        """Write it again if somebody removed it. Raises as `write` does."""
        if self._driver_version and not self._is_there():
            with self._lock:
                if not self._is_there():
                    log.warning("the common CDI spec was deleted", extra={"file": str(self._specs.file())})
                    self._write(self._driver_version)

    def keep(self) -> float:
        """Write it again if the node is not as it says; in how many seconds to look again. What is in the way is told
        by `problem`, and tried again.
        """
        try:
            self.restore()
            with self._lock:
                if self._driver_version and self._fingerprint(self._driver_version) != self._seen:
                    self._write(self._driver_version)
        except (PrepareError, OSError) as error:
            problem = f"the common CDI spec is out of date and cannot be written: {error}"
            if problem != self._problem:
                log.error("%s; trying again", problem)
            self._problem = problem
        else:
            self._problem = None
        return _LOOK_SECONDS

    def problem(self) -> str | None:
        """Why containers may not start with what the spec says; None when it was right at the last look."""
        return self._problem

    def remove_half_written(self) -> None:
        """Remove what somebody who was killed left half written. Nobody may be writing it meanwhile."""
        self._specs.remove_leftovers()

    def _is_there(self) -> bool:
        return self._specs.file().is_file()

    def _fingerprint(self, driver_version: str) -> cdi.Fingerprint:
        return cdi.fingerprint(self.root, driver_version, self._hook_roots)

    def _write(self, driver_version: str) -> None:
        seen = self._fingerprint(driver_version)  # before the look, so that a change meanwhile is seen the next time
        hook = self._given_hook or cdi.find_hook_tool(*self._hook_roots)
        try:
            found = cdi.common_edits(self.root, driver_version, hook)
        except cdi.DriverFilesError as error:
            raise PrepareError(str(error)) from None
        for warning in found.warnings:
            log.warning("%s", warning)
        file = self._specs.write(cdi.base_spec(found.edits))
        self._hook, self._driver_version, self._seen = hook, driver_version, seen
        log.info("wrote the common CDI spec", extra={"file": str(file), "mounts": len(found.edits.mounts)})


class ClaimSpecs:
    """CDI specs beside the `common` one, describing the same driver. `mps` is the folder of MPS on the host."""

    def __init__(self, common: CommonSpec, mps: Path, metadata: SpecMetadata | None = None) -> None:
        self._common = common
        self._mps = mps
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
        return found.edits + mps_edits(self._mps, record, name)


def cdi_names(uid: str, device: str) -> list[str]:
    """What a container asks its runtime for to get `device` of the claim. Its own name comes first: kubelet reports the
    health of a device under the first one, and takes devices with the same for one.
    """
    return [cdi.claim_device(uid, device), cdi.BASE_DEVICE]
