# SPDX-License-Identifier: Apache-2.0
"""The container runtime of the node, the findings about it, and CDI in the configuration of CRI-O.

CDI is always enabled in CRI-O, so only the folders that it reads can be wrong. crio.conf is read first, then every file
below crio.conf.d in the order of their names. A key of a later file replaces that of an earlier one (pkg/config of
CRI-O).
"""

import enum
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..containers.runtime import version_of
from ..finding import CheckResult, NodeCheck
from .containerd import (
    CONFIGS,
    DEFAULT_FOLDERS,
    ContainerdFacts,
    containerd_drop_in,
    containerd_findings,
    read_containerd,
)
from .host import DropIn, Host, TomlFile, Unreadable, array, read_toml, strings
from .process import runtime_config

CRIO = NodeCheck("cdi in cri-o")
CONFIG = "/etc/crio/crio.conf"

_TABLE = ("crio", "runtime")
_KEY = "cdi_spec_dirs"
_DROP_IN = "99-dra-driver-gpu-cdi.conf"

CHECK = NodeCheck("container runtime")


@dataclass(frozen=True, slots=True)
class CrioFacts:
    """Like ContainerdFacts. `folder` has the drop-ins."""

    files: tuple[TomlFile, ...]
    problems: tuple[Unreadable, ...]
    folder: str
    wanted: str
    same: Mapping[str, str] = field(default_factory=dict)


def read_crio(host: Host, main: str, wanted: str) -> CrioFacts:
    """Read crio.conf and its drop-ins."""
    folder = f"{main}.d"
    entries = host.entries(folder)
    problems = [entries] if isinstance(entries, Unreadable) else []
    paths = [main] if isinstance(entries, Unreadable) else [main, *entries]
    read = [read_toml(host, path) for path in paths]
    files = tuple(one for one in read if isinstance(one, TomlFile))
    problems += [one for one in read if isinstance(one, Unreadable)]
    facts = CrioFacts(files, tuple(problems), folder, wanted)
    folders = {wanted, *DEFAULT_FOLDERS, *(_folders(facts)[0] or ())}
    return CrioFacts(files, tuple(problems), folder, wanted, {one: host.canonical(one) for one in folders})


def crio_findings(facts: CrioFacts) -> Iterator[CheckResult]:
    """Whether CRI-O reads our folder."""
    if facts.problems:
        for problem in facts.problems:
            yield CRIO.warned(str(problem), "correct the file; CRI-O itself may not start with it")
        return
    folders, place = _folders(facts)
    if folders is None:
        yield CRIO.failed(
            f"{_KEY} is not a list of folders ({place})", f"write `{_KEY} = {array(DEFAULT_FOLDERS)}` there"
        )
    elif not _reads(facts, folders):
        text = f"specs are written to {facts.wanted}, and CRI-O reads {', '.join(folders) or 'none'} ({place})"
        lines = f"[crio.runtime]; {_line(facts, folders)}"
        yield CRIO.failed(
            text,
            f"run this with --fix, which writes {_path(facts)} ({lines}), and restart crio; or run the plugin with"
            " --cdi-root of a folder that it reads",
        )
    else:
        yield CRIO.passed(f"always enabled, reads {facts.wanted} ({place})")


def crio_drop_in(facts: CrioFacts) -> DropIn | None:
    """The file that corrects the configuration. None if nothing is wrong, or a file cannot be read."""
    folders, _ = _folders(facts)
    if facts.problems or folders is None or _reads(facts, folders):
        return None
    return DropIn(_path(facts), f"[crio.runtime]\n{_line(facts, folders)}\n", "crio")


def _folders(facts: CrioFacts) -> tuple[tuple[str, ...] | None, str]:
    """The folders (None: not a list), and the place of this setting."""
    for file in reversed(facts.files):
        table = file.table(*_TABLE)
        if table is not None and _KEY in table:
            line = file.line(_TABLE, _KEY)
            return strings(table[_KEY]), f"{file.path}, line {line}" if line else file.path
    return DEFAULT_FOLDERS, "the default"


def _reads(facts: CrioFacts, folders: tuple[str, ...]) -> bool:
    return facts.same.get(facts.wanted, facts.wanted) in {facts.same.get(one, one) for one in folders}


def _line(facts: CrioFacts, folders: tuple[str, ...]) -> str:
    return f"{_KEY} = {array((*folders, facts.wanted))}"


def _path(facts: CrioFacts) -> str:
    return posixpath.join(facts.folder, _DROP_IN)


class Runtime(enum.StrEnum):
    """A container runtime."""

    CONTAINERD = "containerd"
    CRI_O = "cri-o"


_PROGRAMS = {Runtime.CONTAINERD: "containerd", Runtime.CRI_O: "crio"}

_TRACES = {
    Runtime.CONTAINERD: ("/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", *CONFIGS),
    Runtime.CRI_O: ("/run/crio/crio.sock", CONFIG, f"{CONFIG}.d"),
}


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The configuration of the runtime, or None if none was found. `other` is the runtime that the Node reports if it
    is neither containerd nor CRI-O. `missing` is the file of the flag, if it does not exist. `visible` tells whether
    this process sees the host's files.
    """

    configuration: ContainerdFacts | CrioFacts | None = None
    visible: bool = True
    other: str = ""
    missing: str = ""


def read_runtime(host: Host, reported: str, cdi_root: str, *, visible: bool, config: str | None) -> RuntimeFacts:
    """`reported` is the Node's containerRuntimeVersion (`containerd://2.1.4`), empty if unknown. `config` is the
    runtime's main file, if it is neither in the usual place nor on the runtime's command line.
    """
    if not visible:
        return RuntimeFacts(visible=False)
    if config and not host.exists(config):
        return RuntimeFacts(missing=config)
    kind = runtime_of(reported)
    if reported and kind is None:
        return RuntimeFacts(other=reported)
    kind = kind or (_of_file(host, config) if config else _found(host))
    if kind is not None and config is None:
        config = _started_with(host, kind)
    if kind is Runtime.CONTAINERD:
        main = config or next((path for path in CONFIGS if host.exists(path)), CONFIGS[0])
        return RuntimeFacts(read_containerd(host, main, version_of(reported), cdi_root))
    if kind is Runtime.CRI_O:
        return RuntimeFacts(read_crio(host, config or CONFIG, cdi_root))
    return RuntimeFacts()


def runtime_of(reported: str) -> Runtime | None:
    """The runtime that a Node reports. None for another one, or if it is unknown."""
    name = reported.partition("://")[0]
    return Runtime(name) if name in tuple(Runtime) else None


def runtime_findings(facts: RuntimeFacts) -> Iterator[CheckResult]:
    """Whether the runtime will find our CDI specs."""
    if not facts.visible:
        yield CHECK.warned(
            "its configuration cannot be read from this container",
            "mount the host's / read-only and name it with --host-root, or run this command on the host",
        )
    elif isinstance(facts.configuration, ContainerdFacts):
        yield from containerd_findings(facts.configuration)
    elif isinstance(facts.configuration, CrioFacts):
        yield from crio_findings(facts.configuration)
    elif facts.missing:
        yield CHECK.warned(
            f"{facts.missing}, which --runtime-config names, does not exist on the host",
            "set --runtime-config to the path on the host",
        )
    elif facts.other:
        yield CHECK.warned(
            f"the Node has {facts.other}, whose configuration this command cannot read",
            "check that it reads CDI specs from --cdi-root, or use containerd or CRI-O",
        )
    else:
        yield CHECK.warned(
            "neither containerd nor CRI-O was found",
            "check that the runtime has CDI enabled and reads --cdi-root; with --kubeconfig and --node-name, this"
            " command reads from the Node which runtime it is",
        )


def drop_in(facts: RuntimeFacts) -> DropIn | None:
    """The file that --fix writes. None if it cannot help."""
    if isinstance(facts.configuration, ContainerdFacts):
        return containerd_drop_in(facts.configuration)
    return crio_drop_in(facts.configuration) if facts.configuration else None


def _started_with(host: Host, kind: Runtime) -> str | None:
    """The main file on the runtime's command line, if the host has this file."""
    config = runtime_config(host, _PROGRAMS[kind])
    return config if config and host.exists(config) else None


def _of_file(host: Host, config: str) -> Runtime:
    """The runtime to which a main file belongs. An unreadable file is reported for either runtime."""
    file = read_toml(host, config)
    return Runtime.CRI_O if isinstance(file, TomlFile) and "crio" in file.value else Runtime.CONTAINERD


def _found(host: Host) -> Runtime | None:
    """The only runtime of which the host has files."""
    there = [runtime for runtime, paths in _TRACES.items() if any(map(host.exists, paths))]
    return there[0] if len(there) == 1 else None
