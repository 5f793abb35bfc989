# SPDX-License-Identifier: Apache-2.0
"""The right to run the IMEX daemon of a node.

The daemon gets the driver's files by the common CDI spec, which has nvidia-imex and nvidia-imex-ctl, and all GPUs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.domains.names import DAEMON_TYPE
from dra_driver.errors import ImexFilesError
from dra_driver.gpu.imex import CAPABILITIES_FOLDER, DeviceNumbers, read_management
from dra_driver.gpu.inventory import Inventory
from dra_driver.kube.resource.codec import Fields

from ..claims.model import Device, SpecPlace
from ..containers import cdi
from ..containers.cdi.spec import DeviceNode
from ..errors import PrepareError
from .domain import DomainKind, DomainName

CONTROL_PROGRAM: Final = "nvidia-imex-ctl"
DAEMON_PROGRAMS: Final = ("nvidia-imex", CONTROL_PROGRAM)

_MODE: Final = 0o400
_PERMISSIONS: Final = "rw"


@dataclass(frozen=True, slots=True)
class DaemonKind(DomainKind):
    """The IMEX daemon of the node for a domain."""

    TAG = DAEMON_TYPE

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The capability of the daemon, the names of its domain, and the GPUs. Raises NoDriverError while there is no
        NVIDIA driver.
        """
        inventory = place.node.gpus().inventory
        _require_programs(place.root.files, inventory)
        nodes: tuple[DeviceNode, ...] = ()
        if self.clique:
            found = management_of(place.node.folders.hardware.proc_root)
            path = f"{CAPABILITIES_FOLDER}/nvidia-cap{found.minor}"
            nodes = (
                DeviceNode(
                    path, type="c", major=found.major, minor=found.minor, file_mode=_MODE, permissions=_PERMISSIONS
                ),
            )
        edits = cdi.ContainerEdits(
            env=(
                f"CLIQUE_ID={self.clique}",
                f"COMPUTE_DOMAIN_UUID={self.domain.uid}",
                f"COMPUTE_DOMAIN_NAME={self.domain.name}",
                f"COMPUTE_DOMAIN_NAMESPACE={self.domain.namespace}",
            ),
            device_nodes=nodes,
        )
        for gpu in inventory.gpus:
            try:
                edits += cdi.gpu_edits(place.root, gpu.minor).edits
            except cdi.DriverFilesError as error:
                raise PrepareError(f"GPU {gpu.index}: {error}") from None
        return edits

    @classmethod
    def from_json(cls, fields: Fields) -> "DaemonKind":
        """See Kind."""
        return cls(DomainName.from_json(fields.required_object("domain")), fields.text("clique"))


def management_of(proc_root: Path) -> DeviceNumbers:
    """The device of the capability of an IMEX daemon, on the node whose /proc this is. Raises PrepareError."""
    try:
        found = read_management(proc_root)
    except ImexFilesError as error:
        raise PrepareError(str(error)) from None
    if found is None:
        raise PrepareError(
            f"the NVIDIA driver offers no capability fabric-imex-mgmt below {proc_root}, which an IMEX daemon needs"
        )
    return found


def _require_programs(root: cdi.Root, inventory: Inventory) -> None:
    """Raises PrepareError if the node has no IMEX daemon to run."""
    for name in DAEMON_PROGRAMS:
        if cdi.find_program(root, name) is None:
            version = inventory.driver_version
            raise PrepareError(
                f"{name} is not below {root.path}: install the package nvidia-imex of version {version}, that of"
                " the NVIDIA driver, on the node (nvidia-imex-<branch> in NVIDIA's repositories)"
            )
