# SPDX-License-Identifier: Apache-2.0
"""Which container runtime the node has, and the findings about it."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from .cluster import version_of
from .containerd import CONFIGS, ContainerdFacts, containerd_drop_in, containerd_findings, read_containerd
from .crio import CONFIG, CrioFacts, crio_drop_in, crio_findings, read_crio
from .dropin import DropIn
from .finding import CheckResult, warned
from .host import Host
from .process import runtime_config
from .toml_file import TomlFile, read_toml

CHECK = "container runtime"


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
    """The configuration of the runtime that is there, None when none was found. `other` is what the Node reports when
    it is neither, `missing` the file that was named and is not there, `visible` whether this process sees the host's
    files at all.
    """

    configuration: ContainerdFacts | CrioFacts | None = None
    visible: bool = True
    other: str = ""
    missing: str = ""


def read_runtime(host: Host, reported: str, cdi_root: str, *, visible: bool, config: str | None) -> RuntimeFacts:
    """`reported` is the Node's containerRuntimeVersion (`containerd://2.1.4`), empty when unknown; `config` the
    runtime's main file where it is neither in the usual place nor named on the runtime's command line.
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
    """The runtime that a Node reports; None for another one, or none."""
    name = reported.partition("://")[0]
    return Runtime(name) if name in tuple(Runtime) else None


def runtime_findings(facts: RuntimeFacts) -> Iterator[CheckResult]:
    """Whether the runtime will find our CDI specs."""
    if not facts.visible:
        yield warned(
            CHECK,
            "its configuration cannot be read from this container",
            "mount the host's / read-only and name it with --host-root, or run this on the host",
        )
    elif isinstance(facts.configuration, ContainerdFacts):
        yield from containerd_findings(facts.configuration)
    elif isinstance(facts.configuration, CrioFacts):
        yield from crio_findings(facts.configuration)
    elif facts.missing:
        yield warned(
            CHECK,
            f"{facts.missing}, which --runtime-config names, does not exist on the host",
            "give its path on the host",
        )
    elif facts.other:
        yield warned(
            CHECK,
            f"the Node has {facts.other}, whose configuration this command cannot read",
            "see that it reads CDI specs from --cdi-root, or use containerd or CRI-O",
        )
    else:
        yield warned(
            CHECK,
            "neither containerd nor CRI-O was found",
            "see that the runtime has CDI enabled and reads --cdi-root; with --kubeconfig and --node-name the Node"
            " tells which it is",
        )


def drop_in(facts: RuntimeFacts) -> DropIn | None:
    """What --fix writes; None when nothing is to be mended that way."""
    if isinstance(facts.configuration, ContainerdFacts):
        return containerd_drop_in(facts.configuration)
    return crio_drop_in(facts.configuration) if facts.configuration else None


def _started_with(host: Host, kind: Runtime) -> str | None:
    """The main file of the runtime's command line, if there is one and the host has it where this looks."""
    config = runtime_config(host, _PROGRAMS[kind])
    return config if config and host.exists(config) else None


def _of_file(host: Host, config: str) -> Runtime:
    """Whose main file it is; one that cannot be read is told so in either case."""
    file = read_toml(host, config)
    return Runtime.CRI_O if isinstance(file, TomlFile) and "crio" in file.value else Runtime.CONTAINERD


def _found(host: Host) -> Runtime | None:
    """The only runtime that left files on the host."""
    there = [runtime for runtime, paths in _TRACES.items() if any(map(host.exists, paths))]
    return there[0] if len(there) == 1 else None
