# SPDX-License-Identifier: Apache-2.0
"""Checks of the folders that this plugin shares with kubelet and the container runtime, and of the CDI specs in them.

kubelet watches plugins_registry below its --root-dir. A plugin's own socket may be anywhere. It should be in the
plugin's own folder below plugins, because that may be all that a container sees of plugins.

NVIDIA's own DRA driver may have left CDI specs. Both drivers use the same CDI names for a claim's devices, and a
runtime that finds a device in two specs uses neither.
"""

import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_driver.cdi import CLAIM_KIND, SpecDirectory

from ..kubelet.sockets import LONGEST_PATH
from .finding import Check, CheckResult
from .host import Folder, Host

REGISTRY, PLUGINS = Check("kubelet plugin registry"), Check("kubelet plugins")
SOCKETS, CDI = Check("socket paths"), Check("cdi folder")
REGISTRAR_VALUE = "kubeletPlugin.kubeletRegistrarDirectoryPath"
PLUGINS_VALUE = "kubeletPlugin.kubeletPluginsDirectoryPath"
"""The chart's values for both folders."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """The three folders, and the paths that the sockets will have. `plugins` is the driver's own folder if it exists.
    `root` is kubelet's root folder, or empty if unknown. `elsewhere` are the checks whose folder is not at
    its place below the root folder.
    """

    registry: Folder
    plugins: Folder
    cdi: Folder
    sockets: tuple[str, ...]
    root: str = ""
    elsewhere: frozenset[Check] = frozenset()


def read_folders(host: Host, registry: Path, own: Path, cdi: Path, sockets: Iterable[Path], root: str) -> FolderFacts:
    """Read the folders, and compare their paths with kubelet's `root`. `own` is the driver's folder in plugins."""
    plugins = own.parent
    belongs = {
        REGISTRY: (registry, posixpath.join(root, "plugins_registry")),
        PLUGINS: (plugins, posixpath.join(root, "plugins")),
    }
    elsewhere = {check for check, (is_, ought) in belongs.items() if host.canonical(str(is_)) != host.canonical(ought)}
    return FolderFacts(
        root=root,
        elsewhere=frozenset(elsewhere) if root else frozenset(),
        registry=host.folder(str(registry)),
        plugins=host.folder(str(own if host.exists(str(own)) else plugins)),
        cdi=host.folder(str(cdi)),
        sockets=tuple(map(str, sockets)),
    )


def folder_findings(facts: FolderFacts) -> Iterator[CheckResult]:
    """Whether each folder exists and is writable, and whether the paths of sockets are short enough."""
    if REGISTRY in facts.elsewhere:
        text = (
            f"kubelet searches plugins in {facts.root}/plugins_registry, and this driver registers in"
            f" {facts.registry.path}"
        )
        yield REGISTRY.failed(text, _move(facts.root))
    else:
        yield _folder(REGISTRY, facts.registry, _look_for("--kubelet-registrar-directory-path", REGISTRAR_VALUE))
    if PLUGINS in facts.elsewhere:
        text = f"plugins belong into {facts.root}/plugins, and this driver has its files in {facts.plugins.path}"
        yield PLUGINS.warned(text, _move(facts.root))
    else:
        yield _folder(PLUGINS, facts.plugins, _look_for("--kubelet-plugins-directory-path", PLUGINS_VALUE))
    if facts.cdi.exists or facts.cdi.problem:
        yield _folder(
            CDI,
            facts.cdi,
            "set --cdi-root (chart: kubeletPlugin.cdiRoot) to a folder that the container runtime reads",
        )
    else:
        yield CDI.passed(f"{facts.cdi.path} does not exist yet; the plugin creates it")
    yield _sockets(facts.sockets)


def _move(root: str) -> str:
    registry, plugins = f"{root}/plugins_registry", f"{root}/plugins"
    return (
        f"helm upgrade --reuse-values --set {REGISTRAR_VALUE}={registry},{PLUGINS_VALUE}={plugins}; else"
        f" --kubelet-registrar-directory-path={registry} --kubelet-plugins-directory-path={plugins}"
    )


def _look_for(flag: str, value: str) -> str:
    return (
        "start kubelet; in a container, mount the host's folder at the same path; if kubelet has another --root-dir,"
        f" set {flag} to its folder (chart: {value})"
    )


def _folder(check: Check, folder: Folder, remedy: str) -> CheckResult:
    if not folder.exists:
        return check.failed(f"{folder.path}: {folder.problem or 'missing'}", remedy)
    if folder.problem is None:
        return check.passed(f"{folder.path} (read-only for this process)")
    if folder.problem:
        return check.failed(f"{folder.path}: {folder.problem}", "run as root; mount the folder read-write")
    return check.passed(folder.path)


def _sockets(paths: Sequence[str]) -> CheckResult:
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    length = len(os.fsencode(longest))
    if length > LONGEST_PATH:
        return SOCKETS.failed(
            f"{longest} has {length} bytes, and the path of a socket may have at most {LONGEST_PATH}",
            "choose a shorter kubelet root folder",
        )
    return SOCKETS.passed(f"the longest has {length} of {LONGEST_PATH} bytes")


CHECK = Check("cdi specs")
_NAMED = 3  # how many paths are in the text; all are in the command of the remedy


def foreign_findings(host: Host, cdi_root: Path) -> Iterator[CheckResult]:
    """A warning if there are such specs."""
    try:
        names = [path.name for path in SpecDirectory(host.here(str(cdi_root)), CLAIM_KIND).foreign_files()]
    except OSError:  # reported by the finding about the folder
        return
    if not names:
        return
    named, paths = names[:_NAMED], [str(cdi_root / name) for name in names]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    yield CHECK.warned(
        f"{cdi_root} has specs of NVIDIA's own DRA driver: {', '.join(named)}{more}; a runtime cannot"
        " resolve the devices of a claim that both drivers prepared",
        "while that driver runs, delete the pods of its claims, so that it removes them; once it is uninstalled: rm "
        + " ".join(map(shlex.quote, paths)),
    )
