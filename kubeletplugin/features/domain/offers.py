# SPDX-License-Identifier: Apache-2.0
"""What the node offers to a claim: the clique of its GPUs, and an IMEX daemon of its own."""

from dataclasses import dataclass
from typing import Final

from dra_driver.domains.daemon.control import READY, state_of
from dra_driver.errors import ProgramError
from dra_driver.gpu.imex import FabricProgress, NodeFabric, fabric_of
from dra_driver.gpu.nvml import NvmlError

from ...errors import PrepareError
from ...host.programs import HostPrograms
from ...kinds.channel import channels_of
from ...kinds.daemon import CONTROL_PROGRAM, management_of
from ...node.node import Node

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


def clique_for(node: Node, host: HostDaemon | None, *, is_daemon: bool) -> str:
    """The clique of the node for a claim of a daemon or of channels. Empty outside of a fabric. `host` is the node's
    own daemon, if that is the one to use.

    Raises PrepareError if the node cannot give the claim what it needs, NoDriverError, HungError or NvmlError.
    """
    fabric = _fabric(node, anew=is_daemon)
    if fabric.problem:
        raise PrepareError(
            f"the node cannot have channels at the moment: {fabric.problem}; kubelet tries again (nvidia-smi -q"
            " shows the state of each GPU under Fabric)"
        )
    if fabric.clique:
        proc_root = node.folders.hardware.proc_root
        management_of(proc_root) if is_daemon else channels_of(proc_root)
    if fabric.clique and host is not None and (problem := host.problem()):
        raise PrepareError(
            f"the IMEX daemon of the node is not ready: {problem}; look at nvidia-imex.service on the node"
        )
    return fabric.clique


def _fabric(node: Node, *, anew: bool) -> NodeFabric:
    """The fabric. It is read again if it was not ready when the GPUs were last read, or with `anew`."""
    gpus = node.gpus()
    fabric = fabric_of(gpus.inventory)
    if anew or fabric.progress in (FabricProgress.IN_PROGRESS, FabricProgress.FAILED):
        try:
            gpus.refresh()
        except NvmlError as error:
            node.access.report(error)
            raise
        fabric = fabric_of(gpus.inventory)
    return fabric
