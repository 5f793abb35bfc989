# SPDX-License-Identifier: Apache-2.0
"""The driver's libraries below a driver root, the links to them, and how a container's loader finds them.

The libraries must have exactly the version of the kernel module. So a library belongs to the driver if its name ends in
`.so.<driver version>`. A few libraries of the driver have versions of their own (the EGL platforms, NVVM, the X.Org
driver) and are found by name. The folders are the usual ones, folders in which the cache of the dynamic loader has
libraries of the driver, and folders that the administrator names. Follows pkg/nvcdi and internal/discover of
nvidia-container-toolkit 1.20.

Mounts alone leave a container without the driver's symbolic links, and with a dynamic loader that does not know the new
libraries. The hooks of `nvidia-cdi-hook` or `nvidia-ctk hook` create the links and refresh the loader's cache. Both
programs come with nvidia-container-toolkit. A release that does not know a hook warns and continues. Arguments follow
internal/discover/hooks.go and cmd/nvidia-cdi-hook of nvidia-container-toolkit 1.20.

Without a hook program, each library is mounted again under the name of each link to it, and all names again in the two
folders that glibc always searches: that of Debian's multiarch layout, and that of other distributions. So the loader of
every glibc image finds the driver, and loads a file that is mounted several times only once. Compared with hooks, this
has limits:

- An image whose loader cache or LD_LIBRARY_PATH already names a libcuda.so.1 (CUDA forward compatibility, stubs) keeps
  using that one, and a compatibility package that is newer than the node's driver is not enabled.
- Images with another C library (musl) do not work.
- NVML in the container may still try to create device nodes of other GPUs. The device cgroup denies opening them.
- EGL and Vulkan programs list GPUs that the container was not given, and fail if they choose one of them.
- /dev/dri/by-path is empty.
- A container starts a little slower (some 150 mounts), and the mount points stay in its writable layer as empty files.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.process.loader_cache import CACHE
from dra_driver.process.loader_cache import library_folders as cached_folders

from ...errors import DriverFilesError
from .files import PROGRAM_FOLDERS, READ_ONLY, find_program
from .root import Root
from .spec import Hook, Mount

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
"""The folders of distributions and of NVIDIA's installer. /usr/lib is not among them, because RHEL has 32-bit libraries
there.
"""

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
"""Library, link beside it, and target of the link (the library itself if empty). Programs expect these links, even if
they are missing on the node.
"""

_CACHED_NAMES = re.compile(r"lib(cuda|nvidia-.*)\.so\b.*")
"""Names of the driver's libraries in the loader's cache, by which their folders are found."""

HOOK_NAMES = ("nvidia-cdi-hook", "nvidia-ctk")
HOOK_FOLDERS = (*PROGRAM_FOLDERS, "/usr/local/nvidia/toolkit")

_LOADER_FOLDERS = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
"""The folders that glibc always searches, by `uname -m`."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library with the path `path` in a container. `source` is its file without links, below the driver root."""

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
    """The detected libraries and links. `folders` are the folders that a container's dynamic loader must know."""

    libraries: tuple[Library, ...]
    links: tuple[Link, ...]
    folders: tuple[str, ...]

    def folder_of(self, name: str) -> str:
        """The folder in a container of the library with this name, such as `libcuda.so`. Empty if it was not found."""
        return next((posixpath.dirname(library.path) for library in self.libraries if _stem(library.path) == name), "")


def library_folders(root: Root, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The folders that may have libraries of the driver: the usual ones, the folders that an administrator has `named`,
    and the folders of the loader's cache below `root`.
    """
    cache = root.resolve(f"/{CACHE}")
    cached = () if cache is None else cached_folders(root.here(cache), _is_of_driver)
    return (*LIBRARY_FOLDERS, *named, *cached)


def find_libraries(root: Root, version: str, named: Sequence[str] = ()) -> DriverLibraries:
    """The libraries of driver `version` (such as `550.54.15`) in `library_folders` of `root` and their usual
    subfolders.

    Raises DriverFilesError if there is none.
    """
    searched = library_folders(root, named)
    main = _existing(root, searched)
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
    # A link with the name of a library may lead to a file elsewhere. A link to a library found here is not a library.
    for path, is_link in belonging:
        source = root.resolve(path) if is_link else None
        if source and source not in found and belongs.fullmatch(posixpath.basename(source)):
            found[path] = Library(path, source)
    if not any(of_version.fullmatch(posixpath.basename(path)) for path in found):
        raise DriverFilesError(
            f"no library of NVIDIA driver {version} (*.so.{version}) below {root.path}, searched in "
            f"{', '.join(main or searched)}: is this the driver root, and the version that of the loaded kernel"
            " module?"
        )
    libraries = tuple(found.values())
    links = _links(root, [path for path, is_link in entries if is_link and path not in found], libraries)
    used = tuple(folder for folder in main if any(posixpath.dirname(library.path) == folder for library in libraries))
    return DriverLibraries(libraries, links, used)


def more_folders(folders: Sequence[str]) -> list[str]:
    """The folders of libraries that programs load by path: subfolders of `folders`, and others."""
    return [*(posixpath.join(folder, inner) for folder in folders for inner in _INNER_FOLDERS), *_OTHER_FOLDERS]


def _is_of_driver(name: str) -> bool:
    return _CACHED_NAMES.fullmatch(name) is not None


def _existing(root: Root, folders: Sequence[str]) -> list[str]:
    """The existing ones of `folders`, without links and without duplicates."""
    return list(dict.fromkeys(resolved for folder in folders if (resolved := root.resolve(folder))))


def _name_pattern(*globs: str) -> re.Pattern[str]:
    """A pattern for file names that match one of `globs`."""
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))


def _stem(path: str) -> str:
    """`libcuda.so` for `/usr/lib64/libcuda.so.550.54.15`."""
    name, _, _ = posixpath.basename(path).partition(".so")
    return f"{name}.so"


def _links(root: Root, paths: Sequence[str], libraries: Sequence[Library]) -> tuple[Link, ...]:
    """The links among `paths` that lead to one of `libraries`, and the links that programs expect."""
    by_source = {library.source: library for library in libraries}
    stems = {_stem(library.path) for library in libraries}
    leading: dict[str, Library] = {}
    for path in paths:
        # A folder has thousands of links, of which only a few have a library's name.
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
    """The text of the link at `path`, or the library's own path if the link's target will not be in the container."""
    text = str(root.here(path).readlink())
    next_path = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
    return text if next_path in in_container else library.path


def _usual_links(libraries: Sequence[Library]) -> Iterator[Link]:
    for library in libraries:
        folder, file = posixpath.split(library.path)
        for stem, name, target in _USUAL_LINKS:
            if _stem(library.path) == stem and file != name:
                yield Link(posixpath.join(folder, name), target or file, library)


@dataclass(frozen=True, slots=True)
class HookTool:
    """The hook program with this `path` on the host. It runs on the host, not in the container."""

    path: str

    def create_symlinks(self, links: Iterable[tuple[str, str]]) -> Hook:
        """Create symbolic links in the container, given as (text of the link, path of the link)."""
        return self._hook("create-symlinks", *_repeat("--link", (f"{text}::{path}" for text, path in links)))

    def enable_cuda_compat(self, driver_version: str) -> Hook:
        """Prefer the image's forward-compatibility libcuda if it is newer than driver `driver_version`."""
        return self._hook("enable-cuda-compat", f"--host-driver-version={driver_version}")

    def update_ldcache(self, folders: Iterable[str]) -> Hook:
        """Add `folders` to the cache of the container's dynamic loader."""
        return self._hook("update-ldcache", *_repeat("--folder", folders))

    def update_application_profile(self) -> Hook:
        """Let EGL and Vulkan programs in the container see only its own GPUs. Known from 1.20 on."""
        return self._hook("update-application-profile")

    def disable_device_node_modification(self) -> Hook:
        """Prevent NVML in the container from creating nodes of other GPUs."""
        return self._hook("disable-device-node-modification")

    def _hook(self, command: str, *args: str) -> Hook:
        name = posixpath.basename(self.path)
        program = (name, "hook") if name == "nvidia-ctk" else (name,)
        return Hook("createContainer", self.path, (*program, command, *args), env=("NVIDIA_CTK_DEBUG=false",))


def find_hook_tool(*roots: Root) -> HookTool | None:
    """The hook program below the first of `roots` that has one, nvidia-cdi-hook before nvidia-ctk. None if none has
    one.

    The runtime executes the program on the host, so a root must be the host's, or have programs that can run there. If
    the driver is in a container, include the host's root if possible, because the toolkit container of the GPU Operator
    puts the programs there, into /usr/local/nvidia/toolkit.
    """
    for root in roots:
        for name in HOOK_NAMES:
            if found := find_program(root, name, HOOK_FOLDERS):
                return HookTool(root.on_host(found[0]))
    return None


def _repeat(flag: str, values: Iterable[str]) -> list[str]:
    return [argument for value in values for argument in (flag, value)]


def alias_mounts(root: Root, found: DriverLibraries, machine: str) -> Iterator[Mount]:
    """The mounts in addition to those of the libraries at their own paths, for nodes of `machine` (`uname -m`)."""
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
