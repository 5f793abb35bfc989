# SPDX-License-Identifier: Apache-2.0
"""Checks of the NVIDIA driver (the loaded kernel module, the library, and whether their versions agree) and the GPUs.

/proc/driver/nvidia/version has two forms: that of the closed module (`NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu
…`) and that of the open one (`NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build …`).
"""

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.nvml_library import LIBRARY, LIBRARY_DIRECTORIES
from dra_driver.gpu.options import Hardware
from kubeletplugin.containers.cdi import DriverRoot, Root, character_majors, find_hook_tool, find_node
from kubeletplugin.containers.cdi.edits import CONTROL_NODES, GPU_DRIVERS

from ..finding import CheckResult, NodeCheck
from .host import Host, Unreadable

MODULE, LIBRARY_CHECK = NodeCheck("driver module"), NodeCheck("driver library")
VERSIONS, HOOK = NodeCheck("driver versions"), NodeCheck("cdi hook")

_OLDEST = (565,)
_MODULE_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)\b")
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")

NVML, GPUS, NODES = NodeCheck("nvml"), NodeCheck("gpus"), NodeCheck("device nodes")

_REMEDIES: Mapping[Return, str] = {
    Return.LIBRARY_NOT_FOUND: "set --nvidia-driver-root (chart: nvidiaDriverRoot) to the folder of the driver",
    Return.DRIVER_NOT_LOADED: "`modprobe nvidia`; if that does not help, read `dmesg | grep -i nvrm`",
    Return.LIB_RM_VERSION_MISMATCH: "reload the nvidia modules, or restart the node: library and module differ",
    Return.NO_PERMISSION: "run as root with the GPUs' device nodes; in a container, as privileged",
    Return.GPU_IS_LOST: "a GPU fell off the bus: read `dmesg | grep -i xid` and restart the node",
}
_LOSSES = {path: loss for path, _, _, loss in CONTROL_NODES if loss}


@dataclass(frozen=True, slots=True)
class NamedHook:
    """The program of --nvidia-cdi-hook-path on the host. `exists` is None if this process does not see the host's
    files.
    """

    path: str
    exists: bool | None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """`module` is the text of `module_path`. `library` is the file to which libnvidia-ml.so.1 leads below
    `driver_root`, and `hook` the path of the hook program. Both are None if they do not exist. `named_hook` is the
    program of the flag.
    """

    module: str | Unreadable | None
    module_path: str
    library: str | None
    hook: str | None
    driver_root: str
    named_hook: NamedHook | None = None

    @property
    def module_version(self) -> str:
        """`570.86.15`, or empty if unknown."""
        found = _MODULE_VERSION.search(self.module) if isinstance(self.module, str) else None
        return found[1] if found else ""

    @property
    def library_version(self) -> str:
        """`570.86.15`, or empty if the file's name has no version."""
        found = _LIBRARY_VERSION.search(self.library or "")
        return found[1] if found else ""


def read_driver(hardware: Hardware, named_hook: NamedHook | None = None) -> DriverFacts:
    """Read the driver root and /proc."""
    files = Root(hardware.driver_root, str(hardware.host_driver_root))
    module_path = hardware.proc_root / "driver/nvidia/version"
    libraries = (files.resolve(posixpath.join("/", folder, LIBRARY)) for folder in LIBRARY_DIRECTORIES)
    hook = find_hook_tool(files)
    return DriverFacts(
        module=Host(hardware.proc_root).read("driver/nvidia/version"),
        module_path=str(module_path),
        library=next(filter(None, libraries), None),
        hook=hook.path if hook else None,
        driver_root=str(hardware.host_driver_root),
        named_hook=named_hook,
    )


def driver_findings(facts: DriverFacts) -> Iterator[CheckResult]:
    """Whether module and library exist, are new enough, and have the same version."""
    yield _module(facts)
    yield _library(facts)
    module, library = facts.module_version, facts.library_version
    if module and library and module != library:
        yield VERSIONS.failed(
            f"the kernel module is {module}, the library {library}",
            "the driver was upgraded while the old module was loaded: unload it (no program may use a GPU) and"
            " `modprobe nvidia`, or restart the node",
        )
    elif module and library:
        yield VERSIONS.passed(f"module and library are both {module}")
    yield _hook(facts)


def _hook(facts: DriverFacts) -> CheckResult:
    if facts.named_hook is not None:
        path, exists = facts.named_hook.path, facts.named_hook.exists
        if exists is False:
            return HOOK.failed(
                f"{path} does not exist on the host, so containers that need it do not start",
                "install it there, or remove --nvidia-cdi-hook-path (chart: nvidiaCDIHookPath), so that it is searched",
            )
        return HOOK.passed(path if exists else f"{path} (not visible from here)")
    if facts.hook is None:
        return HOOK.warned(
            f"no nvidia-cdi-hook or nvidia-ctk below {facts.driver_root}; libraries are mounted under each of"
            " their names instead",
            "install nvidia-container-toolkit-base, or name the program with --nvidia-cdi-hook-path"
            " (chart: nvidiaCDIHookPath)",
        )
    return HOOK.passed(facts.hook)


def _module(facts: DriverFacts) -> CheckResult:
    if isinstance(facts.module, Unreadable):
        return MODULE.failed(str(facts.module), "run as root; in a container, with the host's /proc")
    if facts.module is None:
        return MODULE.failed(
            f"{facts.module_path} is missing: the nvidia kernel module is not loaded",
            "install NVIDIA's driver and `modprobe nvidia`; with a driver container, wait for it or read its log",
        )
    version = facts.module_version
    if not version:
        line = facts.module.partition("\n")[0].strip()
        return MODULE.warned(f"{facts.module_path} has no version: {line!r}", "report this with that line")
    if tuple(int(part) for part in version.split(".")[:1]) < _OLDEST:
        return MODULE.warned(
            f"{version} is older than {_OLDEST[0]}, the oldest release that this driver supports",
            "upgrade NVIDIA's driver; older ones lack NVML calls, so attributes will be missing",
        )
    return MODULE.passed(version)


def _library(facts: DriverFacts) -> CheckResult:
    if facts.library is None:
        folders = ", ".join(LIBRARY_DIRECTORIES[:-1])
        return LIBRARY_CHECK.failed(
            f"no {LIBRARY} below {facts.driver_root} (in {folders})",
            "set --nvidia-driver-root (chart: nvidiaDriverRoot) to the folder of the driver: / for packages,"
            " /run/nvidia/driver for a driver container, /home/kubernetes/bin/nvidia on GKE",
        )
    return LIBRARY_CHECK.passed(posixpath.join(facts.driver_root, facts.library.lstrip("/")))


def read_gpus(hardware: Hardware) -> Inventory | NvmlError:
    """The GPUs that NVML reports, or why it does not. A call that hangs is an error, too."""
    try:
        return hardware.inventory()
    except NvmlError as error:
        return error


def gpu_findings(inventory: Inventory | NvmlError, root: DriverRoot) -> Iterator[CheckResult]:
    """The findings about NVML, the GPUs, and their device nodes, which are searched below `root`."""
    if isinstance(inventory, NvmlError):
        remedy = _REMEDIES.get(inventory.code, "see that `nvidia-smi` works on the host first")
        yield NVML.failed(f"does not answer: {inventory}", remedy)
        return
    yield from inventory_findings(inventory)
    majors = character_majors(root.proc)
    wanted = {path: (names, minor) for path, names, minor, loss in CONTROL_NODES if loss}
    wanted |= {f"/dev/nvidia{gpu.minor}": (GPU_DRIVERS, gpu.minor) for gpu in inventory.gpus}
    found = {path: find_node(root, path, majors, names, minor) for path, (names, minor) in wanted.items()}
    missing = [path for path, (node, _) in found.items() if node is None]
    yield from node_findings(missing, [warning for _, warning in found.values() if warning])


def inventory_findings(inventory: Inventory) -> Iterator[CheckResult]:
    """The findings about NVML and the GPUs."""
    cuda = inventory.cuda_driver_version
    yield NVML.passed(
        f"driver {inventory.driver_version}" + (f", CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
    )
    for failure in inventory.failures:
        yield GPUS.warned(
            f"GPU {failure.index} is left out: {failure.reason}",
            "read `nvidia-smi` and `dmesg | grep -i xid` on the host; reset or replace the GPU",
        )
    for gpu in inventory.gpus:
        for problem in gpu.problems:
            yield GPUS.warned(
                f"GPU {gpu.index} ({gpu.uuid}): {problem}", "attributes will be missing; upgrade NVIDIA's driver"
            )
    if not inventory.gpus:
        yield GPUS.warned(
            "no GPU works" if inventory.failures else "there is none",
            "there is nothing to publish here; run the DaemonSet only on GPU nodes (chart: kubeletPlugin.affinity)",
        )
        return
    counts = Counter(gpu.product_name or "unnamed" for gpu in inventory.gpus)
    yield GPUS.passed(", ".join(f"{count} x {name}" for name, count in counts.items()))


def node_findings(missing: Sequence[str], odd: Sequence[str]) -> Iterator[CheckResult]:
    """`missing` are device nodes that neither exist nor can be created from /proc/devices. `odd` are messages about
    files that should be device nodes.
    """
    for path in missing:
        if path == "/dev/nvidia-uvm":
            yield NODES.warned(f"{path} is missing and its module not loaded: {_LOSSES[path]}", "`modprobe nvidia-uvm`")
        else:
            loss = _LOSSES.get(path, "the GPU cannot be given to a pod")
            yield NODES.failed(
                f"{path} is missing: {loss}",
                "run `nvidia-smi` once on the host, which creates the device nodes; a container must be privileged",
            )
    if odd:
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        yield NODES.warned(
            odd[0] + more, "on a real node, remove that file and run `nvidia-smi`, which creates the device nodes"
        )
    if not missing and not odd:
        yield NODES.passed("all exist, or the runtime can create them")
