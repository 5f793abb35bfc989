# SPDX-License-Identifier: Apache-2.0
"""The edits for MPS: the pipe directory of the daemon, and the variable that tells CUDA its path.

The path in the container is different for every daemon, so that a container can have the devices of several daemons (a
process uses only one of them, because CUDA reads the variable once). Only this directory is mounted, and none above it,
because these have the directories of other claims.
"""

from dataclasses import dataclass
from pathlib import Path

from dra_driver.process.mps import PIPE
from kubeletplugin.containers import cdi
from kubeletplugin.features.mps.memory import shared_memory_folder
from kubeletplugin.features.mps.protocol3 import namespace_folder
from kubeletplugin.features.mps.shares import INSIDE, NODE_DAEMON

from ..errors import PrepareError
from ..kinds.targets import ContainerTarget, MachineTarget, MigSlot
from ..plans.plan import PlannedDevice
from ..records.format import Record
from ..steps import MpsStep

_OPTIONS = ("rw", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True)
class MpsFolders:
    """The folders that dra-mps uses on the node: `files` has the pipe directories, and `shared_memory` has a folder for
    each daemon, which is the /dev/shm of its clients.
    """

    files: Path
    shared_memory: Path


def mps_edits(folders: MpsFolders, record: Record, device: PlannedDevice) -> cdi.ContainerEdits:
    """The edits for a device of a claim. Empty if MPS does not serve the device. Raises PrepareError."""
    edits = cdi.ContainerEdits()
    for step in record.plan.mps():
        if step.serves(device.name, device.share_id):
            edits += _edits(folders, record, step)
    return edits


def _edits(folders: MpsFolders, record: Record, step: MpsStep) -> cdi.ContainerEdits:
    name, folder = step.name, folders.files
    if step.protocol == 3:
        host, inside = namespace_folder(folder, name.server, name.key), f"{INSIDE}/{NODE_DAEMON}/{PIPE}"
        inside = f"{inside}/{name.server}/{name.key}"
    else:
        host, inside = folder / name.server / PIPE, f"{INSIDE}/{name.server}/{PIPE}"
    mounts = [cdi.Mount(str(host), inside, _OPTIONS)]
    if step.shared_memory and step.protocol == 2:
        memory = shared_memory_folder(folders.shared_memory, name.server)
        if not memory.is_dir():
            raise PrepareError(
                f"dra-mps of this node made no shared memory in {memory}, as its earlier versions: delete its pod when"
                " nothing on the node uses MPS"
            )
        mounts.append(cdi.Mount(str(memory), "/dev/shm", _OPTIONS))  # noqa: S108
    return cdi.ContainerEdits(
        env=(f"CUDA_MPS_PIPE_DIRECTORY={inside}", *_limit_variables(record, step)), mounts=tuple(mounts)
    )


def _limit_variables(record: Record, step: MpsStep) -> list[str]:
    """The limits of a share that differ from those of other shares, and the limit of a MIG device, which drivers read
    only from a client's variable. The daemon shows the container this device only, as device 0.
    """
    variables = []
    if step.limits_clients or any(isinstance(one, MigSlot) for one in step.targets):
        limits = step.memory_of(_uuids(record)).values()
        variables += [f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={limit}M" for limit in limits]
    if step.limits_clients and step.limits.percentage is not None:
        variables.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={step.limits.percentage}")
    return variables


def _uuids(record: Record) -> dict[ContainerTarget, str]:
    return {
        one.target: record.instances[one.name].uuid if isinstance(one.target, MigSlot) else one.target.uuid
        for one in record.plan.devices
        if not isinstance(one.target, MachineTarget)
    }
