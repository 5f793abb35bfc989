# SPDX-License-Identifier: Apache-2.0
"""The folders that kubelet, the container runtime and this plugin meet in, and the lengths of socket paths."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..kubelet.sockets import LONGEST_PATH
from .finding import Finding, failed, passed
from .host import Folder, Host

REGISTRY, PLUGINS, SOCKETS, CDI = "kubelet plugin registry", "kubelet plugins", "socket paths", "cdi folder"


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """The three folders, and the paths that sockets will have."""

    registry: Folder
    plugins: Folder
    cdi: Folder
    sockets: tuple[str, ...]


def read_folders(host: Host, registry: Path, plugins: Path, cdi: Path, sockets: Iterable[Path]) -> FolderFacts:
    """Look at each."""
    return FolderFacts(
        registry=host.folder(str(registry)),
        plugins=host.folder(str(plugins)),
        cdi=host.folder(str(cdi)),
        sockets=tuple(map(str, sockets)),
    )


def folder_findings(facts: FolderFacts) -> Iterator[Finding]:
    """Whether each is there and can be written to, and whether sockets fit."""
    kubelet = "start kubelet, or name its folder: kubelet's --root-dir is not /var/lib/kubelet everywhere"
    yield _folder(REGISTRY, facts.registry, f"{kubelet} (--kubelet-registrar-directory-path)")
    yield _folder(PLUGINS, facts.plugins, f"{kubelet} (--kubelet-plugins-directory-path)")
    if facts.cdi.exists or facts.cdi.problem:
        yield _folder(CDI, facts.cdi, "name the folder that the container runtime reads with --cdi-root")
    else:
        yield passed(CDI, f"{facts.cdi.path} is not there yet and will be made")
    yield _sockets(facts.sockets)


def _folder(check: str, folder: Folder, remedy: str) -> Finding:
    if not folder.exists:
        return failed(check, f"{folder.path}: {folder.problem or 'missing'}", remedy)
    if folder.problem is None:
        return passed(check, f"{folder.path} (seen read-only from here)")
    if folder.problem:
        return failed(check, f"{folder.path}: {folder.problem}", "run as root; mount the folder read-write")
    return passed(check, folder.path)


def _sockets(paths: Sequence[str]) -> Finding:
    longest = max(paths, key=lambda path: len(os.fsencode(path)))
    length = len(os.fsencode(longest))
    if length > LONGEST_PATH:
        return failed(
            SOCKETS,
            f"{longest} has {length} bytes, and the path of a socket may have {LONGEST_PATH}",
            "choose a shorter kubelet root folder",
        )
    return passed(SOCKETS, f"the longest has {length} of {LONGEST_PATH} bytes")
