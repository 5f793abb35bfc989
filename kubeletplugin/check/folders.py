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
from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_driver.process.words import listed
from kubeletplugin.containers.cdi import CLAIM_KIND, SpecDirectory

from ..finding import CheckResult, NodeCheck
from ..kubelet.sockets import LONGEST_PATH
from .host import Folder, Host

REGISTRY, PLUGINS = NodeCheck("kubelet plugin registry"), NodeCheck("kubelet plugins")
SOCKETS, CDI = NodeCheck("socket paths"), NodeCheck("cdi folder")
REGISTRAR_VALUE = "kubeletPlugin.kubeletRegistrarDirectoryPath"
PLUGINS_VALUE = "kubeletPlugin.kubeletPluginsDirectoryPath"
"""The chart's values for both folders."""

CHECK = NodeCheck("cdi specs")
_NAMED = 3  # how many paths are in the text; all are in the command of the remedy


def folder_findings(
    host: Host, registry: Path, own: Path, cdi: Path, sockets: Sequence[Path], root: str
) -> Iterator[CheckResult]:
    """Whether each folder exists, is writable, and is at its place below kubelet's `root` (empty if unknown), and
    whether the paths of `sockets` are short enough. `own` is the driver's folder in plugins, which may not exist yet.
    """
    plugins = own.parent
    if root and _differ(host, registry, posixpath.join(root, "plugins_registry")):
        text = f"kubelet searches plugins in {root}/plugins_registry, and this driver registers in {registry}"
        yield REGISTRY.failed(text, _move(root))
    else:
        remedy = _look_for("--kubelet-registrar-directory-path", REGISTRAR_VALUE)
        yield folder_finding(REGISTRY, host.folder(str(registry)), remedy)
    folder = own if host.exists(str(own)) else plugins
    if root and _differ(host, plugins, posixpath.join(root, "plugins")):
        text = f"plugins belong into {root}/plugins, and this driver has its files in {folder}"
        yield PLUGINS.warned(text, _move(root))
    else:
        remedy = _look_for("--kubelet-plugins-directory-path", PLUGINS_VALUE)
        yield folder_finding(PLUGINS, host.folder(str(folder)), remedy)
    yield cdi_finding(host.folder(str(cdi)))
    yield socket_finding(list(map(str, sockets)))


def _differ(host: Host, path: Path, other: str) -> bool:
    return host.canonical(str(path)) != host.canonical(other)


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


def folder_finding(check: NodeCheck, folder: Folder, remedy: str) -> CheckResult:
    """Whether a folder exists and is writable."""
    if not folder.exists:
        return check.failed(f"{folder.path}: {folder.problem or 'missing'}", remedy)
    if folder.problem is None:
        return check.passed(f"{folder.path} (read-only for this process)")
    if folder.problem:
        return check.failed(f"{folder.path}: {folder.problem}", "run as root; mount the folder read-write")
    return check.passed(folder.path)


def cdi_finding(folder: Folder) -> CheckResult:
    """The plugin creates the folder for CDI specs if it does not exist."""
    if not folder.exists and not folder.problem:
        return CDI.passed(f"{folder.path} does not exist yet; the plugin creates it")
    remedy = "set --cdi-root (chart: kubeletPlugin.cdiRoot) to a folder that the container runtime reads"
    return folder_finding(CDI, folder, remedy)


def socket_finding(paths: Sequence[str]) -> CheckResult:
    """Whether the paths of sockets are short enough."""
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    length = len(os.fsencode(longest))
    if length > LONGEST_PATH:
        return SOCKETS.failed(
            f"{longest} has {length} bytes, and the path of a socket may have at most {LONGEST_PATH}",
            "choose a shorter kubelet root folder",
        )
    return SOCKETS.passed(f"the longest has {length} of {LONGEST_PATH} bytes")


def foreign_findings(host: Host, cdi_root: Path) -> Iterator[CheckResult]:
    """A warning if there are such specs."""
    try:
        names = [path.name for path in SpecDirectory(host.here(str(cdi_root)), CLAIM_KIND).foreign_files()]
    except OSError:  # reported by the finding about the folder
        return
    if not names:
        return
    paths = [str(cdi_root / name) for name in names]
    yield CHECK.warned(
        f"{cdi_root} has specs of NVIDIA's own DRA driver: {listed(names, _NAMED)}; a runtime cannot"
        " resolve the devices of a claim that both drivers prepared",
        "while that driver runs, delete the pods of its claims, so that it removes them; once it is uninstalled: rm "
        + " ".join(map(shlex.quote, paths)),
    )
