# SPDX-License-Identifier: Apache-2.0
"""The CDI specs of claims with channels and daemons.

All device nodes have explicit numbers and a mode, because the NVIDIA driver makes no nodes for channels on the host. A
daemon also gets the driver's files by the common spec, which has nvidia-imex and nvidia-imex-ctl, and all GPUs.
"""

from typing import Final

from dra_driver.domains.names import IMEX_FOLDER
from dra_driver.gpu.imex import CAPABILITIES_FOLDER, CHANNELS_FOLDER
from kubeletplugin.containers import cdi
from kubeletplugin.containers.cdi.spec import DeviceNode

from ...containers.common import CommonSpec
from ...errors import PrepareError
from .folder import DomainFolder
from .placing import CONTROL_PROGRAM, NodeImex
from .plan import DomainPlan

DAEMON_PROGRAMS: Final = ("nvidia-imex", CONTROL_PROGRAM)

_PERMISSIONS: Final = "rw"
_CHANNEL_MODE: Final = 0o666
_MANAGEMENT_MODE: Final = 0o400
_FOLDER_OPTIONS: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class DomainSpecs:
    """Writes the specs of claims into `files`, beside the `common` spec of the driver's files."""

    def __init__(self, common: CommonSpec, folder: DomainFolder, node: NodeImex) -> None:
        self._common = common
        self._folder = folder
        self._node = node
        self.files = cdi.SpecDirectory(common.directory, cdi.DOMAIN_CLAIM_KIND, sync=False)

    def ensure(self, plan: DomainPlan) -> None:
        """Write the spec of a claim if it is missing. Raises the errors of `write`."""
        if self.exists(plan.claim.uid):
            if plan.is_daemon:
                self._common.restore()
        else:
            self.write(plan)

    def write(self, plan: DomainPlan) -> None:
        """Write the spec of a claim. A channel outside of a fabric has none. Raises PrepareError, NoDriverError or
        OSError.
        """
        edits = self._daemon(plan) if plan.is_daemon else self._channels(plan)
        if edits != cdi.ContainerEdits():
            devices = {one.cdi_name: edits for one in plan.devices}
            uid = plan.claim.uid
            spec = cdi.claim_spec(uid, devices, cdi.DOMAIN_CLAIM_KIND)
            self.files.write(self._common.runtime.readable(spec), uid)

    def exists(self, uid: str) -> bool:
        """Whether the spec of a claim exists."""
        return self.files.file(uid).is_file()

    def _channels(self, plan: DomainPlan) -> cdi.ContainerEdits:
        if not plan.clique:
            return cdi.ContainerEdits()
        found = self._node.channels()
        return cdi.ContainerEdits(
            device_nodes=tuple(
                _node(f"{CHANNELS_FOLDER}/channel{number}", found.major, number, _CHANNEL_MODE)
                for number in range(found.count if plan.all_channels else 1)
            )
        )

    def _daemon(self, plan: DomainPlan) -> cdi.ContainerEdits:
        self._require_programs()
        self._common.restore()
        nodes: list[DeviceNode] = []
        if plan.clique:
            found = self._node.management()
            path = f"{CAPABILITIES_FOLDER}/nvidia-cap{found.minor}"
            nodes.append(_node(path, found.major, found.minor, _MANAGEMENT_MODE))
        edits = cdi.ContainerEdits(
            env=(
                f"CLIQUE_ID={plan.clique}",
                f"COMPUTE_DOMAIN_UUID={plan.domain}",
                f"COMPUTE_DOMAIN_NAME={plan.domain_name}",
                f"COMPUTE_DOMAIN_NAMESPACE={plan.domain_namespace}",
            ),
            device_nodes=tuple(nodes),
            mounts=(cdi.Mount(str(self._folder.of_domain(plan.domain)), IMEX_FOLDER, _FOLDER_OPTIONS),),
        )
        for gpu in self._node.inventory().gpus:
            try:
                edits += cdi.gpu_edits(self._common.root, gpu.minor).edits
            except cdi.DriverFilesError as error:
                raise PrepareError(f"GPU {gpu.index}: {error}") from None
        return edits

    def _require_programs(self) -> None:
        """Raises PrepareError if the node has no IMEX daemon to run."""
        root = self._common.root.files
        for name in DAEMON_PROGRAMS:
            if cdi.find_program(root, name) is None:
                version = self._node.inventory().driver_version
                raise PrepareError(
                    f"{name} is not below {root.path}: install the package nvidia-imex of version {version}, that of"
                    " the NVIDIA driver, on the node (nvidia-imex-<branch> in NVIDIA's repositories)"
                )


def domain_cdi_names(plan: DomainPlan) -> list[tuple[str, ...]]:
    """The CDI names that a container needs for each device of the plan."""
    if not (plan.is_daemon or plan.clique):
        return [() for _ in plan.devices]
    common = (cdi.BASE_DEVICE,) if plan.is_daemon else ()
    uid = plan.claim.uid
    return [(cdi.claim_device(uid, one.cdi_name, cdi.DOMAIN_CLAIM_KIND), *common) for one in plan.devices]


def _node(path: str, major: int, minor: int, mode: int) -> DeviceNode:
    return DeviceNode(path, type="c", major=major, minor=minor, file_mode=mode, permissions=_PERMISSIONS)
