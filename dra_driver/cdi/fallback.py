# SPDX-License-Identifier: Apache-2.0
"""Making `dlopen("libcuda.so.1")` work without a hook program: a mount for every name of every library.

A hook would make the symbolic links and refresh the loader's cache in the container. Without one, each library is
mounted again under the name of each link that leads to it, and all names again in the two folders that glibc searches
without being told: that of Debian's multiarch layout and that of everybody else. Whichever distribution an image is
built from, its loader then finds the driver, and a file mounted several times is still loaded once.

What this does not give a container, compared with the hooks:

- an image whose loader cache or LD_LIBRARY_PATH already names a libcuda.so.1 (CUDA forward compatibility, stubs) keeps
  using that one, and a compatibility package that is newer than the node's driver is not switched on;
- images of another C library (musl) are not served;
- NVML in the container may still try to make nodes of GPUs that are not the container's own; the device cgroup denies
  opening them;
- /dev/dri/by-path is empty;
- a container starts a little slower (some 150 mounts), and the mount points stay in its writable layer as empty files.
"""

from collections.abc import Iterator

from .files import READ_ONLY
from .libraries import DriverLibraries
from .root import Root
from .spec import Mount

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
