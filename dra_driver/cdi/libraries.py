# SPDX-License-Identifier: Apache-2.0
"""The driver's libraries below a driver root, and the symbolic links that lead to them.

The user-space driver has to be of the kernel module's version exactly, so a library belongs when its name ends in
`.so.<driver version>`. A few that the driver brings have versions of their own (the EGL platforms, NVVM, the X.Org
driver) and go by name. Follows pkg/nvcdi and internal/discover of nvidia-container-toolkit 1.19.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .root import DriverFilesError, Root

LIBRARY_FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
)
"""Where distributions and NVIDIA's installer put the libraries. Not /usr/lib: it has the 32-bit ones on RHEL."""

_XORG_FOLDERS = ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")
_INNER_FOLDERS = ("vdpau", "gbm", "nvidia/xorg", *(f"xorg/{folder}" for folder in _XORG_FOLDERS))
_OTHER_FOLDERS = tuple(
    posixpath.join(folder, inner)
    for folder in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for inner in _XORG_FOLDERS
)
_OF_OTHER_VERSIONS = ("libnvidia-egl-*.so.*", "libnvidia-nvvm70.so.*", "libnvidia-api.so.*", "nvidia_drv.so")

_USUAL_LINKS = (
    ("libcuda.so", "libcuda.so.1", ""),
    ("libcuda.so", "libcuda.so", "libcuda.so.1"),
    ("libnvidia-ml.so", "libnvidia-ml.so.1", ""),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1", ""),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    ("libGLX_nvidia.so", "libGLX_indirect.so.0", ""),
    ("libnvidia-allocator.so", "libnvidia-allocator.so.1", ""),
    ("libnvidia-allocator.so", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    ("libnvidia-vulkan-producer.so", "libnvidia-vulkan-producer.so", ""),
    ("libglxserver_nvidia.so", "libglxserver_nvidia.so", ""),
)
"""Library, link beside it, target (the library itself when empty): what programs count on, on disk or not."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library a container finds at `path`. `source` is the file itself, below the driver root."""

    path: str
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link at `path` in a container with the text `target`, which leads to `library`."""

    path: str
    target: str
    library: Library


@dataclass(frozen=True, slots=True)
class DriverLibraries:
    """What was found. `folders` are those that a container's dynamic loader has to know."""

    libraries: tuple[Library, ...]
    links: tuple[Link, ...]
    folders: tuple[str, ...]

    def folder_of(self, name: str) -> str:
        """Where a container finds the library of this name, such as `libcuda.so`; empty when it is not among them."""
        return next((posixpath.dirname(one.path) for one in self.libraries if _stem(one.path) == name), "")


def find_libraries(root: Root, version: str, folders: Sequence[str] = LIBRARY_FOLDERS) -> DriverLibraries:
    """The libraries of driver `version` (such as `550.54.15`) in `folders` of `root` and the usual folders in those.

    DriverFilesError when there is none.
    """
    main = _existing(root, folders)
    entries = [
        (posixpath.join(folder, entry.name), entry.is_symlink())
        for folder in _existing(root, [*main, *more_folders(main)])
        for entry in root.entries(folder)
        if ".so" in entry.name
    ]
    of_version = _name_pattern(f"*.so.{version}")
    belongs = _name_pattern(f"*.so.{version}", *_OF_OTHER_VERSIONS)
    belonging = [(path, is_link) for path, is_link in entries if belongs.fullmatch(posixpath.basename(path))]
    found = {path: Library(path, path) for path, is_link in belonging if not is_link}
    # a name of the right form may itself lead to a file elsewhere; one that leads to a library found is just a link
    for path, is_link in belonging:
        source = root.resolve(path) if is_link else None
        if source and source not in found and belongs.fullmatch(posixpath.basename(source)):
            found[path] = Library(path, source)
    if not any(of_version.fullmatch(posixpath.basename(path)) for path in found):
        raise DriverFilesError(
            f"no library of NVIDIA driver {version} (*.so.{version}) below {root.path}, searched in "
            f"{', '.join(main or folders)}: is this the driver root, and the version that of the loaded kernel module?"
        )
    libraries = tuple(found.values())
    links = _links(root, [path for path, is_link in entries if is_link and path not in found], libraries)
    used = tuple(folder for folder in main if any(posixpath.dirname(library.path) == folder for library in libraries))
    return DriverLibraries(libraries, links, used)


def more_folders(folders: Sequence[str]) -> list[str]:
    """Where libraries that programs load by path may be besides `folders`, in them and elsewhere."""
    return [*(posixpath.join(folder, inner) for folder in folders for inner in _INNER_FOLDERS), *_OTHER_FOLDERS]


def _existing(root: Root, folders: Sequence[str]) -> list[str]:
    """Those of `folders` that are there, without links on the way, each once."""
    return list(dict.fromkeys(resolved for folder in folders if (resolved := root.resolve(folder))))


def _name_pattern(*globs: str) -> re.Pattern[str]:
    """What matches a file name that one of `globs` describes."""
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))


def _stem(path: str) -> str:
    """`libcuda.so` of `/usr/lib64/libcuda.so.550.54.15`."""
    name, _, _ = posixpath.basename(path).partition(".so")
    return f"{name}.so"


def _links(root: Root, paths: Sequence[str], libraries: Sequence[Library]) -> tuple[Link, ...]:
    """The links among `paths` that lead to one of `libraries`, and those that programs count on."""
    by_source = {library.source: library for library in libraries}
    stems = {_stem(library.path) for library in libraries}
    leading: dict[str, Library] = {}
    for path in paths:
        # a folder has thousands of links; only a few bear a library's name
        if _stem(path) not in stems and posixpath.basename(posixpath.dirname(path)) != "gbm":
            continue
        target = root.resolve(path)
        if target in by_source:
            leading[path] = by_source[target]
    in_container = {library.path for library in libraries} | set(leading)
    links = {path: Link(path, _text(root, path, library, in_container), library) for path, library in leading.items()}
    for link in _usual_links(libraries):
        if link.path not in in_container:
            links.setdefault(link.path, link)
    return tuple(links[path] for path in sorted(links))


def _text(root: Root, path: str, library: Library, in_container: set[str]) -> str:
    """What the link at `path` says, or the library's own path when what it names will not be in the container."""
    text = str(root.here(path).readlink())
    next_path = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
    return text if next_path in in_container else library.path


def _usual_links(libraries: Sequence[Library]) -> Iterator[Link]:
    for library in libraries:
        folder, file = posixpath.split(library.path)
        for stem, name, target in _USUAL_LINKS:
            if _stem(library.path) == stem and file != name:
                yield Link(posixpath.join(folder, name), target or file, library)
