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

from kubeletplugin.containers import cdi

from ..errors import PrepareError
from ..kinds.targets import MachineTarget, MigSlot
from ..plans.plan import PlannedDevice
from ..records.format import Record
from .limits import LimitFiles
from .metadata import SpecMetadata
from .mps import MpsFolders, mps_edits
from .runtime import ContainerRuntime
from .vfio import vfio_edits

log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0


class CommonSpec:
    """The common spec in `directory`, for the driver at `root`. Methods may be called from several threads.

    The hook program is `hook`, or else the first one below `hook_roots`, which may appear or disappear at any time.
    `runtime` is the container runtime that reads the specs of this node.
    """

    def __init__(
        self,
        directory: Path,
        root: cdi.DriverRoot,
        hook: cdi.HookTool | None = None,
        hook_roots: Sequence[cdi.Root] = (),
        runtime: ContainerRuntime | None = None,
    ) -> None:
        self.directory = directory
        self.runtime = runtime or ContainerRuntime(lambda: "")
        self.root = root
        self._given_hook = hook
        self._hook_roots = () if hook else tuple(hook_roots)
        self._hook = hook
        self._specs = cdi.SpecDirectory(directory, cdi.BASE_KIND)
        self._lock = threading.Lock()
        self._driver_version = ""
        self._seen: cdi.Fingerprint | None = None
        self._for_old_runtime = False
        self._problem: str | None = None

    @property
    def hook(self) -> cdi.HookTool | None:
        """The hook program when the spec was last written."""
        return self._hook

    def write(self, driver_version: str) -> None:
        """Write the spec for this driver version. Raises PrepareError if files of the driver are missing, or
        OSError.
        """
        with self._lock:
            self._write(driver_version)

    def restore(self) -> None:
        """Write the spec again if it was removed. Raises the errors of `write`."""
        if self._driver_version and not self._is_there():
            with self._lock:
                if not self._is_there():
                    log.warning("the common CDI spec was deleted", extra={"file": str(self._specs.file())})
                    self._write(self._driver_version)

    def keep(self) -> float:
        """Write the spec again if the node has changed. Returns the seconds until the next check. A failure is reported
        by `problem`, and tried again.
        """
        try:
            self.restore()
            with self._lock:
                if self._driver_version and self._is_out_of_date():
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
        """Why the spec is out of date, or None."""
        return self._problem

    def remove_half_written(self) -> None:
        """Remove an incomplete file of a process that was killed. No other process may be writing the spec."""
        self._specs.remove_leftovers()

    def _is_there(self) -> bool:
        return self._specs.file().is_file()

    def _is_out_of_date(self) -> bool:
        seen = self._fingerprint(self._driver_version)
        return (seen, self.runtime.is_too_old) != (self._seen, self._for_old_runtime)

    def _fingerprint(self, driver_version: str) -> cdi.Fingerprint:
        return cdi.fingerprint(self.root, driver_version, self._hook_roots)

    def _write(self, driver_version: str) -> None:
        seen = self._fingerprint(driver_version)  # taken first, so that the next one shows changes in between
        hook = self._given_hook or cdi.find_hook_tool(*self._hook_roots)
        try:
            found = cdi.common_edits(self.root, driver_version, hook)
        except cdi.DriverFilesError as error:
            raise PrepareError(str(error)) from None
        for warning in found.warnings:
            log.warning("%s", warning)
        file = self._specs.write(self.runtime.readable(cdi.base_spec(found.edits)))
        self._hook, self._driver_version, self._seen = hook, driver_version, seen
        self._for_old_runtime = self.runtime.is_too_old
        log.info("wrote the common CDI spec", extra={"file": str(file), "mounts": len(found.edits.mounts)})


class ClaimSpecs:
    """The CDI specs of claims, for the same driver as the `common` spec."""

    def __init__(
        self, common: CommonSpec, mps: MpsFolders, limits: LimitFiles, metadata: SpecMetadata | None = None
    ) -> None:
        self._common = common
        self._mps = mps
        self._limits = limits
        self._metadata = metadata
        # The spec of a claim needs no fsync, because neither the spec nor its devices are used after a reboot.
        self._claims = cdi.SpecDirectory(common.directory, cdi.CLAIM_KIND, sync=False)

    def remove_half_written(self) -> None:
        """Remove incomplete files of a process that was killed. No other process may be writing specs."""
        self._claims.remove_leftovers()
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
        uid = record.plan.claim.uid
        edits: dict[str, cdi.ContainerEdits] = {}
        for device in record.plan.devices:
            try:
                edits[device.cdi_name] = self._edits(device, record)
            except cdi.DriverFilesError as error:
                raise PrepareError(f"device {device.name}: {error}") from None
        if edits and self._metadata is not None:
            edits |= self._metadata.edits(record)
        if edits:
            self._claims.write(self._common.runtime.readable(cdi.claim_spec(uid, edits)), uid)

    def exists(self, uid: str) -> bool:
        """Whether the claim's spec exists."""
        return self._claims.file(uid).is_file()

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

    def _edits(self, device: PlannedDevice, record: Record) -> cdi.ContainerEdits:
        root, hook, target = self._common.root, self._common.hook, device.target
        if isinstance(target, MachineTarget):
            return vfio_edits(root, record.plan, device.name)
        if isinstance(target, MigSlot):
            ids = record.instances[device.name]
            found = cdi.mig_edits(root, target.minor, ids.gpu_instance, ids.compute_instance, target.pci_address, hook)
        else:
            found = cdi.gpu_edits(root, target.minor, target.pci_address, hook)
        edits = found.edits + mps_edits(self._mps, record, device)
        for name in device.additional_devices:
            additional = cdi.find_additional(root, name)
            for warning in additional.warnings:
                log.warning("%s", warning, extra={"claim": str(record.plan.claim), "device": device.name})
            edits += additional.edits
        if device.memory_limit is not None:
            edits += self._limits.edits(record.plan.claim.uid, device.cdi_name)
        return edits


def cdi_names(uid: str, device: PlannedDevice) -> list[str]:
    """The CDI names that a container needs to get `device` of the claim. A GPU for a virtual machine does not need the
    common files of NVIDIA's driver. The device's own name comes first, because kubelet reports the health of a device
    under its first CDI name, and treats devices with the same first name as one.
    """
    own = cdi.claim_device(uid, device.cdi_name)
    return [own] if isinstance(device.target, MachineTarget) else [own, cdi.BASE_DEVICE]
