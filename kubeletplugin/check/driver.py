# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver as it is installed: the loaded kernel module, the library, and whether they belong together.

/proc/driver/nvidia/version has two forms, of the closed module (`NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu …`)
and of the open one (`NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build …`).
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.cdi import Root, find_hook_tool
from dra_driver.gpu.nvml_library import LIBRARY, LIBRARY_DIRECTORIES
from dra_driver.gpu.options import Hardware

from .finding import CheckResult, failed, passed, warned
from .host import Host, Unreadable

MODULE, LIBRARY_CHECK, VERSIONS, HOOK = "driver module", "driver library", "driver versions", "cdi hook"

_OLDEST = (565,)
_MODULE_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)\b")
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")


@dataclass(frozen=True, slots=True)
class NamedHook:
    """The program that --nvidia-cdi-hook-path names on the host. `exists` is None when the host is not to be seen."""

    path: str
    exists: bool | None


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """`module` is the text of `module_path`. `library` is the file that libnvidia-ml.so.1 leads to below
    `driver_root`, `hook` the program that finishes containers, both None when missing; a hook may be named as well.
    """

    module: str | Unreadable | None
    module_path: str
    library: str | None
    hook: str | None
    driver_root: str
    named_hook: NamedHook | None = None

    @property
    def module_version(self) -> str:
        """`570.86.15`, empty when unknown."""
        found = _MODULE_VERSION.search(self.module) if isinstance(self.module, str) else None
        return found[1] if found else ""

    @property
    def library_version(self) -> str:
        """`570.86.15`, empty when the name of the file does not tell."""
        found = _LIBRARY_VERSION.search(self.library or "")
        return found[1] if found else ""


def read_driver(hardware: Hardware, named_hook: NamedHook | None = None) -> DriverFacts:
    """Look below the driver root and in /proc."""
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
    """Whether module and library are there, new enough, and of one version."""
    yield _module(facts)
    yield _library(facts)
    module, library = facts.module_version, facts.library_version
    if module and library and module != library:
        yield failed(
            VERSIONS,
            f"the kernel module is {module}, the library {library}",
            "the driver was upgraded while the old module was loaded: unload it (no program may use a GPU) and"
            " `modprobe nvidia`, or restart the node",
        )
    elif module and library:
        yield passed(VERSIONS, f"module and library are both {module}")
    yield _hook(facts)


def _hook(facts: DriverFacts) -> CheckResult:
    if facts.named_hook is not None:
        path, exists = facts.named_hook.path, facts.named_hook.exists
        if exists is False:
            return failed(
                HOOK,
                f"{path} does not exist on the host, so containers that need it do not start",
                "install it there, or remove --nvidia-cdi-hook-path (chart: nvidiaCDIHookPath), so that it is searched",
            )
        return passed(HOOK, path if exists else f"{path} (not seen from here)")
    if facts.hook is None:
        return warned(
            HOOK,
            f"no nvidia-cdi-hook or nvidia-ctk below {facts.driver_root}; libraries are mounted under each of"
            " their names instead",
            "install nvidia-container-toolkit-base, or name the program with --nvidia-cdi-hook-path"
            " (chart: nvidiaCDIHookPath)",
        )
    return passed(HOOK, facts.hook)


def _module(facts: DriverFacts) -> CheckResult:
    if isinstance(facts.module, Unreadable):
        return failed(MODULE, str(facts.module), "run as root, and in a container with the host's /proc")
    if facts.module is None:
        return failed(
            MODULE,
            f"{facts.module_path} is missing: the nvidia kernel module is not loaded",
            "install NVIDIA's driver and `modprobe nvidia`; with a driver container, wait for it or read its log",
        )
    version = facts.module_version
    if not version:
        line = facts.module.partition("\n")[0].strip()
        return warned(MODULE, f"{facts.module_path} names no version: {line!r}", "report this with that line")
    if tuple(int(part) for part in version.split(".")[:1]) < _OLDEST:
        return warned(
            MODULE,
            f"{version} is older than {_OLDEST[0]}, the oldest release that this driver supports",
            "upgrade NVIDIA's driver; older ones lack NVML calls, so attributes will be missing",
        )
    return passed(MODULE, version)


def _library(facts: DriverFacts) -> CheckResult:
    if facts.library is None:
        folders = ", ".join(LIBRARY_DIRECTORIES[:-1])
        return failed(
            LIBRARY_CHECK,
            f"no {LIBRARY} below {facts.driver_root} (in {folders})",
            "set --nvidia-driver-root (chart: nvidiaDriverRoot) to where the driver is: / for packages,"
            " /run/nvidia/driver for a driver container, /home/kubernetes/bin/nvidia on GKE",
        )
    return passed(LIBRARY_CHECK, posixpath.join(facts.driver_root, facts.library.lstrip("/")))
