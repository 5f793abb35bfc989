# SPDX-License-Identifier: Apache-2.0
"""Checks of kubelet's configuration: the feature gate for DRA, and the name of its Node. Also tells the socket of the
container runtime that kubelet uses.

kubelet builds its configuration in this order (cmd/kubelet/app/server.go, KEP-3983): first the file of --config, then
each *.conf below --config-dir in lexical order, as a JSON merge patch, then the flags, with feature gates one by one.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..finding import CheckResult, NodeCheck
from .cluster import ON_BY_DEFAULT, reported_minor
from .host import Host, Unreadable
from .process import Started, Unseen, find_kubelet

CHECK, NAME = NodeCheck("kubelet configuration"), NodeCheck("node name")

_GATE, _ALL_BETA = "DynamicResourceAllocation", "AllBeta"
_ENDPOINT = "containerRuntimeEndpoint"


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate that is set, and its place: a file, or the flags of a kubelet."""

    is_on: bool
    place: str
    is_flag: bool = False


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """`files` were read in this order. `problems` tell which of them could not be read. `endpoint` is that of the
    container runtime, empty if kubelet was not told one.
    """

    started: Started | Unseen
    files: tuple[str, ...] = ()
    gates: Mapping[str, Gate] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    endpoint: str = ""

    @property
    def root(self) -> str:
        """kubelet's root folder, or empty if unknown."""
        started = self.started
        return posixpath.join(started.folder, started.flags.root_dir) if isinstance(started, Started) else ""


def read_kubelet(
    host: Host, usual: str, node_name: str, arguments: Mapping[str, Sequence[str]], *, visible: bool
) -> KubeletFacts:
    """Find kubelet and read its files. `usual` is read if kubelet is not found (kubeadm:
    `/var/lib/kubelet/config.yaml`). For `arguments` see find_kubelet.
    """
    if not visible:
        unseen = Unseen("not visible from this container", "mount the host's / read-only and name it with --host-root")
        return KubeletFacts(unseen)
    started = find_kubelet(host, node_name, arguments)
    gates: dict[str, Gate] = {}
    endpoint = ""
    files: list[str] = []
    problems: list[str] = []
    for path, must_be in _paths(host, started, usual, problems):
        text = host.read(path)
        if text is None:
            if must_be:
                problems.append(f"{path}, which kubelet's --config names, does not exist")
        elif isinstance(text, Unreadable):
            problems.append(str(text))
        else:
            files.append(path)
            value = _parsed(path, text, problems)
            problems += _merge(gates, path, value.get("featureGates", {}))
            endpoint = str(value.get(_ENDPOINT) or endpoint)
    if isinstance(started, Started):
        endpoint = started.flags.runtime_endpoint or endpoint
        gates |= {
            name: Gate(on, f"--feature-gates, {started.by}", is_flag=True) for name, on in started.flags.gates.items()
        }
    return KubeletFacts(started, tuple(files), gates, tuple(problems), endpoint)


def kubelet_findings(facts: KubeletFacts, kubelet_version: str, node_name: str) -> Iterator[CheckResult]:
    """Whether kubelet of this release (`v1.33.1`, empty if unknown) has DRA enabled, and belongs to this Node."""
    path = f"/api/v1/nodes/{node_name or 'NODE'}/proxy/configz"
    ask = f"`kubectl get --raw {path}` shows what kubelet uses (featureGates)"
    yield from _configuration(facts, reported_minor(kubelet_version), ask)
    named = facts.started.flags.hostname_override if isinstance(facts.started, Started) else ""
    if named and node_name and named != node_name:
        yield NAME.failed(
            f"kubelet is Node {named} (--hostname-override), and --node-name is {node_name}",
            f"set --node-name (NODE_NAME) to {named}",
        )


def _configuration(facts: KubeletFacts, minor: int | None, ask: str) -> Iterator[CheckResult]:
    for problem in facts.problems:
        yield CHECK.warned(problem, f"check that kubelet uses this file, and correct it; {ask}")
    gate = facts.gates.get(_GATE)
    if gate is None and minor is not None and minor < ON_BY_DEFAULT:
        gate = facts.gates.get(_ALL_BETA)  # the gate is beta in these releases
    if gate is not None and not gate.is_on:
        yield _off(facts.started, f"disabled ({gate.place})", "" if gate.is_flag else gate.place)
    elif facts.problems:
        return
    elif isinstance(facts.started, Unseen):
        yield CHECK.warned(f"kubelet's flags are unknown: {facts.started.reason}", f"{facts.started.remedy}; {ask}")
    elif gate is not None:
        yield CHECK.passed(f"{_GATE} is enabled ({gate.place})")
    elif minor is None:
        yield CHECK.warned(
            f"{_GATE} is not set: enabled by default from 1.{ON_BY_DEFAULT}, and kubelet's version is unknown",
            f"with --kubeconfig and --node-name, check reads it from the Node; {ask}",
        )
    elif minor < ON_BY_DEFAULT:
        config = facts.started.flags.config
        yield _off(facts.started, f"not set, and disabled by default before 1.{ON_BY_DEFAULT}", config)
    else:
        yield CHECK.passed(f"{_GATE} is enabled (by default; {', '.join(('flags', *facts.files))} do not change it)")


def _off(started: Started | Unseen, why: str, file: str) -> CheckResult:
    """`file` is the file to change, or empty if it must be a flag."""
    if file:
        remedy = f"set `featureGates: {{{_GATE}: true}}` in {file}"
    else:
        assert isinstance(started, Started)  # because only these have flags
        remedy = f"give kubelet `--feature-gates={_GATE}=true` {started.change}"
    restart = started.restart if isinstance(started, Started) else "restart kubelet"
    return CHECK.failed(f"feature gate {_GATE} is {why}", f"{remedy}, and {restart}")


def _paths(host: Host, started: Started | Unseen, usual: str, problems: list[str]) -> Iterator[tuple[str, bool]]:
    """kubelet's files in the order in which it reads them, and whether each must exist."""
    if isinstance(started, Unseen):
        yield usual, False
        return
    flags = started.flags
    if flags.config:
        yield posixpath.join(started.folder, flags.config), True
    if flags.config_dir:
        for path in _below(host, posixpath.join(started.folder, flags.config_dir), problems):
            if path.endswith(".conf"):
                yield path, False


def _below(host: Host, folder: str, problems: list[str]) -> Iterator[str]:
    """The files in `folder` and its subfolders."""
    entries = host.entries(folder)
    if isinstance(entries, Unreadable):
        problems.append(str(entries))
        return
    for path in entries:
        if host.is_folder(path):
            yield from _below(host, path, problems)
        else:
            yield path


def _parsed(path: str, text: str, problems: list[str]) -> Mapping[str, Any]:
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problems.append(f"{path} is not YAML: {' '.join(str(error).split())}")
        return {}
    if not isinstance(value, Mapping):
        problems.append(f"{path} is not a KubeletConfiguration")
        return {}
    return value


def _merge(gates: dict[str, Gate], path: str, patch: object) -> Iterator[str]:
    """Add the gates of one file, which override earlier ones. Yields the problems of the file."""
    if patch is None:  # in a merge patch, this removes all gates
        gates.clear()
    elif not isinstance(patch, Mapping):
        yield f"featureGates in {path} is not a mapping"
    else:
        for name, is_on in patch.items():
            gates.pop(name, None)
            if is_on is not None:
                gates[str(name)] = Gate(is_on is True, path)
