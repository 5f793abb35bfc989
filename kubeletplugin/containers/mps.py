# SPDX-License-Identifier: Apache-2.0
"""The edits for MPS: the pipe directory of the daemon, and the variable that tells CUDA its path.

The path in the container is different for every daemon, so that a container can have the devices of several daemons (a
process uses only one of them, because CUDA reads the variable once). Only this directory is mounted, and none above it,
because these have the directories of other claims.
"""

from pathlib import Path

from dra_driver import cdi
from dra_driver.mps.protocol2 import shared_memory_folder
from dra_driver.mps.protocol3 import namespace_folder
from dra_driver.mps.shares import INSIDE, NODE_DAEMON

from ..hardware.targets import MigSlot, Target
from ..records.store import Record
from ..steps import MpsStep

_NODE_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the node's own
_OPTIONS = ("rw", "nosuid", "nodev", "bind")


def mps_edits(folder: Path, record: Record, device: str) -> cdi.ContainerEdits:
    """The edits for a device of a claim, whose MPS files are in `folder`. Empty if MPS does not serve the device.
    Raises PrepareError.
    """
    edits = cdi.ContainerEdits()
    for step in record.plan.mps():
        if device in step.devices:
            edits += _edits(folder, record, step)
    return edits


def _edits(folder: Path, record: Record, step: MpsStep) -> cdi.ContainerEdits:
    name = step.name
    if step.protocol == 3:
        host, inside = namespace_folder(folder, name.server, name.key), f"{INSIDE}/{NODE_DAEMON}/pipe"
        inside = f"{inside}/{name.server}/{name.key}"
    else:
        host, inside = folder / name.server / "pipe", f"{INSIDE}/{name.server}/pipe"
    mounts = [cdi.Mount(str(host), inside, _OPTIONS)]
    if step.shared_memory and step.protocol == 2:
        memory = shared_memory_folder(_NODE_SHARED_MEMORY, name.server)
        mounts.append(cdi.Mount(str(memory), "/dev/shm", _OPTIONS))  # noqa: S108
    return cdi.ContainerEdits(
        env=(f"CUDA_MPS_PIPE_DIRECTORY={inside}", *_limit_variables(record, step)), mounts=tuple(mounts)
    )


def _limit_variables(record: Record, step: MpsStep) -> list[str]:
    """The limit of a MIG device, which drivers read only from a client's variable. The container sees it as
    device 0.
    """
    if not any(isinstance(one, MigSlot) for one in step.targets):
        return []
    limits = step.memory_of(_uuids(record)).values()
    return [f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit}M" for limit in limits]


def _uuids(record: Record) -> dict[Target, str]:
    return {
        one.target: record.instances[one.name].uuid if isinstance(one.target, MigSlot) else one.target.uuid
        for one in record.plan.devices
    }
