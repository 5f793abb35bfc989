# SPDX-License-Identifier: Apache-2.0
"""How a container gets the driver's links and finds its libraries: by hooks, or without a hook program by mounts.

Mounts alone leave a container without the driver's symbolic links, and with a dynamic loader that does not know the
new libraries. The hooks of `nvidia-cdi-hook` or `nvidia-ctk hook` create the links and refresh the loader's cache. Both
programs come with nvidia-container-toolkit; a release that does not know a hook warns and continues. Arguments follow
internal/discover/hooks.go and cmd/nvidia-cdi-hook of nvidia-container-toolkit 1.19.

Without a hook program, each library is mounted again under the name of each link to it, and all names again in the two
folders that glibc always searches: that of Debian's multiarch layout, and that of other distributions. So the loader
of every glibc image finds the driver, and loads a file that is mounted several times only once. Compared with hooks,
this has limits:

- An image whose loader cache or LD_LIBRARY_PATH already names a libcuda.so.1 (CUDA forward compatibility, stubs) keeps
  using that one, and a compatibility package that is newer than the node's driver is not enabled.
- Images with another C library (musl) do not work.
- NVML in the container may still try to create device nodes of other GPUs; the device cgroup denies opening them.
- /dev/dri/by-path is empty.
- A container starts a little slower (some 150 mounts), and the mount points stay in its writable layer as empty files.
"""

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .files import PROGRAM_FOLDERS, READ_ONLY, find_program
from .libraries import DriverLibraries
from .root import Root
from .spec import Hook, Mount

HOOK_NAMES = ("nvidia-cdi-hook", "nvidia-ctk")
HOOK_FOLDERS = (*PROGRAM_FOLDERS, "/usr/local/nvidia/toolkit")


@dataclass(frozen=True, slots=True)
class HookTool:
    """The hook program at `path` of the host. It runs there, not in the container."""

    path: str

    def create_symlinks(self, links: Iterable[tuple[str, str]]) -> Hook:
        """Make symbolic links in the container, given as (text of the link, where it is)."""
        return self._hook("create-symlinks", *_repeat("--link", (f"{text}::{path}" for text, path in links)))

    def enable_cuda_compat(self, driver_version: str) -> Hook:
        """Prefer the image's forward-compatibility libcuda when it is newer than driver `driver_version`."""
        return self._hook("enable-cuda-compat", f"--host-driver-version={driver_version}")

    def update_ldcache(self, folders: Iterable[str]) -> Hook:
        """Tell the container's dynamic loader about `folders`."""
        return self._hook("update-ldcache", *_repeat("--folder", folders))

    def disable_device_node_modification(self) -> Hook:
        """Keep NVML in the container from making nodes of GPUs that the container was not given."""
        return self._hook("disable-device-node-modification")

    def _hook(self, command: str, *args: str) -> Hook:
        name = posixpath.basename(self.path)
        program = (name, "hook") if name == "nvidia-ctk" else (name,)
        return Hook("createContainer", self.path, (*program, command, *args), env=("NVIDIA_CTK_DEBUG=false",))


def find_hook_tool(*roots: Root) -> HookTool | None:
    """The hook program below the first of `roots` that has one, nvidia-cdi-hook before nvidia-ctk; None without any.

    The runtime will run it on the host, so a root should be the host's, or hold programs that run there too. With the
    driver in a container, the host's root is to be among them if it can be seen: the toolkit container of the GPU
    Operator puts the programs there, into /usr/local/nvidia/toolkit.
    """
    for root in roots:
        for name in HOOK_NAMES:
            if found := find_program(root, name, HOOK_FOLDERS):
                return HookTool(root.on_host(found[0]))
    return None


def _repeat(flag: str, values: Iterable[str]) -> list[str]:
    return [argument for value in values for argument in (flag, value)]


_LOADER_FOLDERS = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
"""Where glibc looks by default, by `uname -m`."""


def alias_mounts(root: Root, found: DriverLibraries, machine: str) -> Iterator[Mount]:
    """The mounts besides those of the libraries at their own paths, for nodes of `machine` (`uname -m`)."""
    names = {library.path: library for library in found.libraries}
    aliases = {link.path: link.library for link in found.links}
    for folder in found.folders:
        inside = {path: library for path, library in (names | aliases).items() if path.rpartition("/")[0] == folder}
        for loader_folder in _LOADER_FOLDERS.get(machine, ()):
            for path, library in inside.items():
                aliases.setdefault(f"{loader_folder}/{path.rpartition('/')[2]}", library)
    for path, library in aliases.items():
        if path not in names:
            yield Mount(root.on_host(library.source), path, READ_ONLY)
