# SPDX-License-Identifier: Apache-2.0
"""Common flags of the node processes: the GPUs (an NVIDIA driver or a simulated node), and the policy.

The processes of a node must have the same flags for the policy, because a device that one process taints is unhealthy
for the other.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ..process.command import InputError, flag, flags
from .fabric import FabricManager
from .facts import Inventory
from .memory_limits import HOOK_PROGRAM, problem_of_node
from .nvml import Nvml
from .passthrough import VfioMarks
from .policy import NodePolicy, PolicyError, PolicyFile
from .session import Session
from .threads import CallLimits

_INIT_ROOT = Path("/proc/1/root")
"""The root folder of the node's first process, for a process that shares the node's process IDs."""

_FABRIC_ADDRESS, _FABRIC_SOCKET = "NVIDIA_FABRICMANAGER_ADDRESS", "NVIDIA_FABRICMANAGER_UNIX_SOCKET"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Hardware:
    """The node's GPUs and the folders around them, as this process sees them.

    `nvml` creates an NVML interface. `driver_root` contains the driver's files, and `host_driver_root` is its path on
    the host. `dev_root`, `proc_root` and `sys_root` contain /dev, /proc and /sys of the GPUs. `nvml_library` returns
    the NVML library for programs of the driver, or None if they find it themselves. `machine_root` is the root folder
    of the node itself, which is not that of the driver if the driver is installed in a container. `enter_root` tells
    that programs below these roots need them as their root folder. `library_folders` are folders with libraries of the
    driver, below its root, in addition to the detected folders. `limits_program` is the hook program for limits of
    memory, if this installation has it. `fabric_manager` has the partitions of NVSwitches.
    """

    nvml: Callable[[], Nvml]
    driver_root: Path
    host_driver_root: Path
    dev_root: Path
    proc_root: Path
    sys_root: Path
    machine_root: Path
    nvml_library: Callable[[], Path | None] = lambda: None
    enter_root: bool = False
    library_folders: tuple[str, ...] = ()
    limits_program: Path = HOOK_PROGRAM
    fabric_manager: FabricManager | None = None

    @property
    def memory_limits_problem(self) -> str | None:
        """Why the memory of containers cannot be limited on this node, or None if it can."""
        return problem_of_node(self.sys_root, self.limits_program)

    def inventory(self) -> Inventory:
        """Read the GPUs once, with a session that ends afterwards. Raises NvmlError."""
        with contextlib.closing(self.session()) as session:
            return session.inventory()

    def session(self, taken: VfioMarks | None = None, limits: CallLimits | None = None) -> Session:
        """Create a session with NVML. A process should have only one at a time. It lets go of the GPUs when one of them
        is `taken`. A process that uses NVML only for a moment need not. `limits` are the time limits of queries.
        """
        return Session(
            self.nvml,
            self.sys_root,
            dev_root=self.dev_root,
            driver_root=self.driver_root,
            limits=limits,
            taken=taken,
            fabric_manager=self.fabric_manager,
        )


def _installed(
    host_root: Path, container_root: Path, folders: tuple[str, ...], address: str | None, socket: Path | None
) -> Hardware:
    from .fabric_library import SOCKET, FabricLibrary
    from .nvml_library import NvmlLibrary, find_library

    root = container_root if container_root.is_dir() else host_root
    library_root = None if root == Path("/") else root
    dev_root = root if (root / "dev/nvidiactl").exists() else Path("/")
    machine_root = root if host_root == Path("/") else _INIT_ROOT
    if address is None:
        address = os.environ.get(_FABRIC_ADDRESS)  # click does not tell an empty variable from none
    fabric = socket or root / SOCKET if address is None else address or _LOOPBACK
    return Hardware(
        lambda: NvmlLibrary(library_root, folders),
        root,
        host_root,
        dev_root,
        Path("/proc"),
        Path("/sys"),
        machine_root,
        lambda: find_library(library_root, folders=folders) if library_root is not None else None,
        enter_root=True,
        library_folders=folders,
        fabric_manager=FabricLibrary(root, fabric, Path("/proc"), Path("/sys")),
    )


def _simulated(name: str | None, root: Path | None, node_name: str) -> Hardware:
    from .simulated import DescriptionError, SimulatedNode, load_description

    if root is None:
        raise InputError("--simulated-node needs --simulated-root, a folder for its hardware")
    try:
        node = SimulatedNode(root) if name is None else SimulatedNode.create(root, load_description(name), node_name)
    except DescriptionError as error:
        raise InputError(str(error)) from None
    driver_root = node.driver_root.absolute()
    return Hardware(
        node.nvml,
        driver_root,
        driver_root,
        driver_root,
        driver_root / "proc",
        driver_root / "sys",
        driver_root,
        fabric_manager=node.fabric if node.fabric.exists else None,
    )


def _hardware(  # noqa: PLR0913, PLR0917  # one for each flag
    nvidia_driver_root: str,
    container_driver_root: str,
    nvidia_library_folders: tuple[str, ...],
    simulated_node: str | None,
    simulated_root: Path | None,
    memory_limits_program: Path,
    fabric_manager_address: str | None,
    fabric_manager_socket: Path | None,
) -> Hardware:
    if simulated_node or simulated_root:
        node_name = str(click.get_current_context().params.get("node_name", ""))
        hardware = _simulated(simulated_node, simulated_root, node_name)
    else:
        roots = Path(nvidia_driver_root), Path(container_driver_root)
        hardware = _installed(*roots, nvidia_library_folders, fabric_manager_address, fabric_manager_socket)
    return replace(hardware, limits_program=memory_limits_program.absolute())


def _folders(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    folders = tuple(filter(None, text.split(":")))
    if not all(folder.startswith("/") for folder in folders):
        raise click.BadParameter(f"{text!r} must be absolute paths, separated by colons")
    return folders


hardware_options = flags(
    "hardware",
    _hardware,
    flag("--nvidia-driver-root", default="/", help="The folder on the host in which the NVIDIA driver is installed."),
    flag(
        "--container-driver-root",
        default="/driver-root",
        envvar="DRIVER_ROOT_CTR_PATH",
        help="The same folder as this process sees it; ignored if it does not exist.",
    ),
    flag(
        "--nvidia-library-folders",
        callback=_folders,
        default="",
        metavar="FOLDER:FOLDER…",
        help="Folders with libraries of the NVIDIA driver below the driver root, in addition to the usual ones"
        " and those in its ld.so.cache.",
    ),
    flag(
        "--simulated-node",
        metavar="NAME|FILE",
        help="Use simulated GPUs: a built-in example node (h100x8, h100x8-mig, …) or a YAML file.",
    ),
    flag(
        "--simulated-root",
        type=click.Path(file_okay=False, path_type=Path),
        help="The folder with the state of the simulated hardware; created if it does not exist.",
    ),
    flag(
        "--memory-limits-program",
        type=click.Path(dir_okay=False, path_type=Path),
        default=str(HOOK_PROGRAM),
        help="The hook program for limits of GPU memory, which the image contains. The driver copies it to the host.",
    ),
    flag(
        "--fabric-manager-address",
        envvar=_FABRIC_ADDRESS,
        metavar="HOST[:PORT]",
        help=f"Where Fabric Manager listens, if it has no UNIX socket; empty for {_LOOPBACK}.",
    ),
    flag(
        "--fabric-manager-socket",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=_FABRIC_SOCKET,
        help="The socket of Fabric Manager. By default, run/nvidia-fabricmanager/socket below the driver root.",
    ),
)
"""Adds these flags, and passes a Hardware as `hardware`."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """The policy file, if any, additional XIDs that are errors of applications, and whether dra-mps is enabled."""

    file: Path | None = None
    application_xids: frozenset[int] = frozenset()
    mps: bool = False

    def on_node(self, name: str, *, memory_limits: bool = False) -> Callable[[], NodePolicy]:
        """A function that returns the node's current policy. `memory_limits` tells whether the node can set limits of
        memory. Raises InputError if the file is invalid.
        """
        source: Callable[[], NodePolicy] = NodePolicy if self.file is None else PolicyFile(self.file, name).current

        def current() -> NodePolicy:
            policy = source()
            xids = policy.health.application_xids | self.application_xids
            health = replace(policy.health, application_xids=xids)
            return replace(policy, health=health, mps=self.mps, memory_limits=memory_limits)

        try:
            current()
        except PolicyError as error:
            raise InputError(str(error)) from None
        return current


def _numbers(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{text!r} must be numbers, separated by commas")
    return frozenset(map(int, words))


policy_options = flags(
    "policy",
    lambda policy_file, additional_xids_to_ignore, mps: PolicyOptions(policy_file, additional_xids_to_ignore, mps),
    flag(
        "--policy-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="How each GPU is used: whether it is published, MIG, passthrough, health (YAML). It is read again when it"
        " changes.",
    ),
    flag(
        "--additional-xids-to-ignore",
        callback=_numbers,
        default="",
        metavar="N,N…",
        help="Additional XIDs that are errors of applications and not of the GPU.",
    ),
    flag(
        "--mps/--no-mps",
        default=False,
        help="dra-mps runs on this node, so that the policy can enforce shares of GPUs with MPS.",
    ),
)
"""Adds --policy-file, --additional-xids-to-ignore and --mps, and passes PolicyOptions as `policy`."""
