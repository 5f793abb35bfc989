# SPDX-License-Identifier: Apache-2.0
"""kubelet's own configuration file, as far as it decides whether DRA works: the feature gate."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from .cluster import minor_of
from .finding import Finding, failed, passed, warned
from .host import Host, Unreadable

CHECK = "kubelet configuration"

_GATE = "DynamicResourceAllocation"
_ON_BY_DEFAULT = 34


@dataclass(frozen=True, slots=True)
class KubeletFacts:
    """`gates` as the file at `path` has them; None when there is no such file, which many distributions do without."""

    path: str
    gates: Mapping[str, object] | None = None
    problem: str = ""


def read_kubelet(host: Host, path: str) -> KubeletFacts:
    """Read the file (`/var/lib/kubelet/config.yaml` by kubeadm)."""
    text = host.read(path)
    if text is None:
        return KubeletFacts(path)
    if isinstance(text, Unreadable):
        return KubeletFacts(path, problem=str(text))
    try:
        value: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return KubeletFacts(path, problem=f"{path} is not YAML: {' '.join(str(error).split())}")
    gates = value.get("featureGates") or {} if isinstance(value, Mapping) else None
    if not isinstance(gates, Mapping):
        return KubeletFacts(path, problem=f"{path} has no mapping of feature gates in featureGates")
    return KubeletFacts(path, dict(gates))


def kubelet_findings(facts: KubeletFacts, kubelet_version: str) -> Iterator[Finding]:
    """Whether kubelet of that release (`v1.33.1`, empty when unknown) has DRA on."""
    if facts.problem:
        yield warned(CHECK, facts.problem, "see that the file is kubelet's, and mend it")
        return
    if facts.gates is None:
        return
    minor = minor_of(kubelet_version)
    is_on = facts.gates.get(_GATE)
    if is_on is False or (is_on is None and minor is not None and minor < _ON_BY_DEFAULT):
        why = "off" if is_on is False else f"not set, and off by default before 1.{_ON_BY_DEFAULT}"
        yield failed(
            CHECK,
            f"feature gate {_GATE} is {why} ({facts.path})",
            f"set `featureGates: {{{_GATE}: true}}` there, and restart kubelet",
        )
    else:
        yield passed(CHECK, f"{facts.path} leaves {_GATE} on")
