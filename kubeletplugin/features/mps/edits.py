# SPDX-License-Identifier: Apache-2.0
"""The edits for MPS: the pipe directory of the daemon, and the variable that tells CUDA its path.

The path in the container is different for every daemon, so that a container can have the devices of several daemons (a
process uses only one of them, because CUDA reads the variable once). Only this directory is mounted, and none above it,
because these have the directories of other claims.
"""

from collections.abc import Iterable
from typing import Final

from dra_driver.process.mps import PIPE

from ...claims.model import SpecPlace
from ...containers import cdi
from ...errors import PrepareError
from .memory import shared_memory_folder
from .protocol3 import namespace_folder
from .services import MpsServices
from .shares import INSIDE, NODE_DAEMON, ShareName

_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")


def mps_edits(
    place: SpecPlace, name: ShareName, protocol: int, shared_memory: bool, variables: Iterable[str]
) -> cdi.ContainerEdits:
    """The edits for a device that the share `name` serves with this protocol, with further `variables`. Raises
    PrepareError.
    """
    folder = place.node.of(MpsServices).files.folder
    if protocol == 3:
        host, inside = namespace_folder(folder, name.server, name.key), f"{INSIDE}/{NODE_DAEMON}/{PIPE}"
        inside = f"{inside}/{name.server}/{name.key}"
    else:
        host, inside = folder / name.server / PIPE, f"{INSIDE}/{name.server}/{PIPE}"
    mounts = [cdi.Mount(str(host), inside, _OPTIONS)]
    if shared_memory and protocol == 2:
        memory = shared_memory_folder(place.node.folders.shared_memory, name.server)
        if not memory.is_dir():
            raise PrepareError(
                f"dra-mps of this node made no shared memory in {memory}, as its earlier versions: delete its pod when"
                " nothing on the node uses MPS"
            )
        mounts.append(cdi.Mount(str(memory), "/dev/shm", _OPTIONS))  # noqa: S108
    return cdi.ContainerEdits(env=(f"CUDA_MPS_PIPE_DIRECTORY={inside}", *variables), mounts=tuple(mounts))
