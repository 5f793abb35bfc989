# SPDX-License-Identifier: Apache-2.0
"""What the node offers to a claim: the clique of its GPUs, channels, and an IMEX daemon of its own."""

from dataclasses import dataclass, replace
from typing import Final

from dra_driver.domains.daemon.control import READY, state_of
from dra_driver.errors import ImexFilesError, ProgramError
from dra_driver.gpu.imex import (
    Channels,
    DeviceNumbers,
    FabricProgress,
    NodeFabric,
    fabric_of,
    read_channels,
    read_management,
)
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.nvml import NvmlError

from ...errors import PrepareError
from ...host.programs import HostPrograms
from ...node.node import Node
from .plan import DomainPlan

CONTROL_PROGRAM: Final = "nvidia-imex-ctl"
_PROGRAM_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class HostDaemon:
    """The node's own IMEX daemon, whose command service has the socket `socket` (a path of the node)."""

    programs: HostPrograms
    socket: str

    def problem(self) -> str | None:
        """Why the daemon is not ready, or None. Takes at most some seconds."""
        try:
            ended = self.programs.run(CONTROL_PROGRAM, ["-q", f"--u={self.socket}"], _PROGRAM_SECONDS)
        except ProgramError as error:
            return str(error)
        if ended.code == 0 and state_of(ended.output) == READY:
            return None
        return f"{CONTROL_PROGRAM} {ended}"


class NodeImex:
    """The node's part in a fabric. `host` is the node's own daemon, if that is the one to use."""

    def __init__(self, node: Node, host: HostDaemon | None = None) -> None:
        self._node = node
        self._proc_root = node.folders.hardware.proc_root
        self._host = host

    def place(self, plan: DomainPlan) -> DomainPlan:
        """The plan with the node's clique. Raises PrepareError if the node cannot give the claim what it needs,
        NoDriverError, HungError or NvmlError.
        """
        fabric = self._fabric(anew=plan.is_daemon)
        if fabric.problem:
            raise PrepareError(
                f"the node cannot have channels at the moment: {fabric.problem}; kubelet tries again (nvidia-smi -q"
                " shows the state of each GPU under Fabric)"
            )
        if fabric.clique:
            self.management() if plan.is_daemon else self.channels()
        if fabric.clique and self._host is not None and (problem := self._host.problem()):
            raise PrepareError(
                f"the IMEX daemon of the node is not ready: {problem}; look at nvidia-imex.service on the node"
            )
        return replace(plan, clique=fabric.clique)

    def channels(self) -> Channels:
        """The channels of the node. Raises PrepareError."""
        try:
            found = read_channels(self._proc_root)
        except ImexFilesError as error:
            raise PrepareError(str(error)) from None
        if found is None:
            raise PrepareError(
                f"{self._proc_root / 'devices'} has no IMEX channels: load the nvidia module without the parameter"
                " NVreg_ImexChannelCount=0"
            )
        return found

    def management(self) -> DeviceNumbers:
        """The device of the capability of an IMEX daemon. Raises PrepareError."""
        try:
            found = read_management(self._proc_root)
        except ImexFilesError as error:
            raise PrepareError(str(error)) from None
        if found is None:
            raise PrepareError(
                f"the NVIDIA driver offers no capability fabric-imex-mgmt below {self._proc_root}, which an IMEX daemon"
                " needs"
            )
        return found

    def inventory(self) -> Inventory:
        """The GPUs of the node. Raises NoDriverError."""
        return self._node.gpus().inventory

    def _fabric(self, *, anew: bool) -> NodeFabric:
        """The fabric. It is read again if it was not ready when the GPUs were last read, or if `anew`."""
        gpus = self._node.gpus()
        fabric = fabric_of(gpus.inventory)
        if anew or fabric.progress in (FabricProgress.IN_PROGRESS, FabricProgress.FAILED):
            try:
                gpus.refresh()
            except NvmlError as error:
                self._node.access.report(error)
                raise
            fabric = fabric_of(gpus.inventory)
        return fabric
