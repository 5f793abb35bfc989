# SPDX-License-Identifier: Apache-2.0
"""The folders of this driver on the node."""

from dataclasses import dataclass
from pathlib import Path

from dra_driver.domains.names import DRIVER as DOMAIN_DRIVER
from dra_driver.gpu.options import Hardware

from ..containers import cdi


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """The folders of this driver on the node, as absolute paths. `folder` is its own, `registry` is kubelet's, and
    `shared_memory` has folders that clients of a daemon have as /dev/shm.
    """

    registry: Path
    folder: Path
    cdi_root: Path
    shared_memory: Path
    hardware: Hardware

    @property
    def records(self) -> Path:
        """The folder of the claims' records."""
        return self.folder / "claims"

    @property
    def domain_folder(self) -> Path:
        """The folder of the driver compute-domain.nvidia.com, beside that of the driver for GPUs."""
        return self.folder.parent / DOMAIN_DRIVER

    @property
    def metadata(self) -> Path:
        """The folder of the claims' metadata files."""
        return self.folder / "metadata"

    @property
    def driver_root(self) -> cdi.DriverRoot:
        """The places where CDI specs find the driver's files."""
        hardware = self.hardware
        machine_is_own = hardware.machine_root == hardware.driver_root
        dev_is_own = hardware.dev_root == hardware.driver_root
        return cdi.DriverRoot(
            files=cdi.Root(hardware.driver_root, str(hardware.host_driver_root)),
            dev=cdi.Root(hardware.dev_root, str(hardware.host_driver_root) if dev_is_own else "/"),
            proc=hardware.proc_root,
            sys=hardware.sys_root,
            machine=cdi.Root(hardware.machine_root, str(hardware.host_driver_root) if machine_is_own else "/"),
            library_folders=hardware.library_folders,
        )
