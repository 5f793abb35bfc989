# SPDX-License-Identifier: Apache-2.0
"""Checks of the folders that this plugin shares with kubelet and the container runtime, and of the CDI specs in them.

kubelet watches plugins_registry below its --root-dir. A plugin's own socket may be anywhere. It belongs into a folder
of its own below plugins, because a container may see nothing else of plugins.

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
from .finding import CheckResult, failed, passed, warned
from .host import Folder, Host

REGISTRY, PLUGINS, SOCKETS, CDI = "kubelet plugin registry", "kubelet plugins", "socket paths", "cdi folder"
REGISTRAR_VALUE = "kubeletPlugin.kubeletRegistrarDirectoryPath"
PLUGINS_VALUE = "kubeletPlugin.kubeletPluginsDirectoryPath"
"""The chart's values for both."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """The three folders, and the paths that sockets will have. `plugins` is the driver's own folder there once it is
    made, `root` kubelet's folder, empty when unknown, and `elsewhere` are those that are not where they belong below
    it, by the name of their check.
    """

    registry: Folder
    plugins: Folder
    cdi: Folder
    sockets: tuple[str, ...]
    root: str = ""
    elsewhere: frozenset[str] = frozenset()


def read_folders(host: Host, registry: Path, own: Path, cdi: Path, sockets: Iterable[Path], root: str) -> FolderFacts:
    """Look at each, and compare where they are with kubelet's `root`. `own` is the driver's folder in plugins."""
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
    """Whether each is there and can be written to, and whether sockets fit."""
    if REGISTRY in facts.elsewhere:
        text = (
            f"kubelet looks for plugins in {facts.root}/plugins_registry, and this driver registers in"
            f" {facts.registry.path}"
        )
        yield failed(REGISTRY, text, _move(facts.root))
    else:
        yield _folder(REGISTRY, facts.registry, _look_for("--kubelet-registrar-directory-path", REGISTRAR_VALUE))
    if PLUGINS in facts.elsewhere:
        text = f"plugins belong to {facts.root}/plugins, and this driver keeps its files in {facts.plugins.path}"
        yield warned(PLUGINS, text, _move(facts.root))
    else:
        yield _folder(PLUGINS, facts.plugins, _look_for("--kubelet-plugins-directory-path", PLUGINS_VALUE))
    if facts.cdi.exists or facts.cdi.problem:
        yield _folder(
            CDI,
            facts.cdi,
            "name the folder that the container runtime reads with --cdi-root (chart: kubeletPlugin.cdiRoot)",
        )
    else:
        yield passed(CDI, f"{facts.cdi.path} does not exist yet; the plugin creates it")
    yield _sockets(facts.sockets)


def _move(root: str) -> str:
    registry, plugins = f"{root}/plugins_registry", f"{root}/plugins"
    return (
        f"helm upgrade --reuse-values --set {REGISTRAR_VALUE}={registry},{PLUGINS_VALUE}={plugins}; else"
        f" --kubelet-registrar-directory-path={registry} --kubelet-plugins-directory-path={plugins}"
    )


def _look_for(flag: str, value: str) -> str:
    return (
        "start kubelet; in a container, mount the host's folder at the same path; where kubelet's --root-dir is another"
        f" one, name its folder with {flag} (chart: {value})"
    )


def _folder(check: str, folder: Folder, remedy: str) -> CheckResult:
    if not folder.exists:
        return failed(check, f"{folder.path}: {folder.problem or 'missing'}", remedy)
    if folder.problem is None:
        return passed(check, f"{folder.path} (seen read-only from here)")
    if folder.problem:
        return failed(check, f"{folder.path}: {folder.problem}", "run as root; mount the folder read-write")
    return passed(check, folder.path)


def _sockets(paths: Sequence[str]) -> CheckResult:
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    length = len(os.fsencode(longest))
    if length > LONGEST_PATH:
        return failed(
            SOCKETS,
            f"{longest} has {length} bytes, and the path of a socket may have {LONGEST_PATH}",
            "choose a shorter kubelet root folder",
        )
    return passed(SOCKETS, f"the longest has {length} of {LONGEST_PATH} bytes")


CHECK = "cdi specs"
_NAMED = 3  # one by one; the command for all of them is in the remedy


def read_foreign(host: Host, cdi_root: Path) -> tuple[str, ...]:
    """The paths of those specs on the host, sorted."""
    try:
        found = SpecDirectory(host.here(str(cdi_root)), CLAIM_KIND).foreign_files()
    except OSError:  # which the finding about the folder tells
        return ()
    return tuple(str(cdi_root / path.name) for path in found)


def foreign_findings(paths: Sequence[str]) -> Iterator[CheckResult]:
    """A warning when there are any."""
    if not paths:
        return
    named = [Path(path).name for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    yield warned(
        CHECK,
        f"{Path(paths[0]).parent} has specs of NVIDIA's own DRA driver: {', '.join(named)}{more}; a runtime cannot"
        " resolve the devices of a claim that both drivers prepared",
        "while that driver runs, delete the pods of its claims, so that it removes them; once it is uninstalled: rm "
        + " ".join(map(shlex.quote, paths)),
    )
