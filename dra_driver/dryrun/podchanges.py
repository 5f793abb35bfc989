# SPDX-License-Identifier: Apache-2.0
"""Changes that make a whole pod fit. Each change was tried alone, and a node accepts the pod with it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ..kube.resource import DeviceTaint, ResourceClaim
from ..scheduler.pods import Attempt, Pod, Site
from ..scheduler.pods.devices import PLUGIN as DEVICES
from ..scheduler.pods.node_filters import untolerated
from .changes import Suggestion, Trial, helpful_changes, tolerating
from .explain import taint_text
from .refusals import amount, is_bytes

_TRIED: Final = 20
"""The number of nodes on which a change is tried. Nodes where it is most likely to help are first."""
_MEBI: Final = 1 << 20
_CORDONED: Final = "node.kubernetes.io/unschedulable"


def helpful_pod_changes(attempt: Attempt, holders: Sequence[ResourceClaim]) -> list[Suggestion]:
    """Changes after each of which the pod fits, which it does not now. `holders` are as for `helpful_changes`."""
    found = [*_to_the_pod(attempt), *_to_nodes(attempt)]
    trial = without_devices(attempt)
    return [*found, *helpful_changes(trial, holders)] if trial.claims else found


def without_devices(attempt: Attempt) -> Trial:
    """The claims on the nodes that lack devices for them and nothing else.

    Nodes whose device plugins serve a part of the pod's resources are left out.
    """
    cluster = attempt.snapshot.cluster
    lacking = {site.node.name: attempt.devices.decided(site) for site in _refused_by(attempt, DEVICES)}
    first = next((refusal for refusal in lacking.values() if refusal is not None), None)
    nodes = tuple(node for node in cluster.nodes if first is not None and lacking.get(node.name) is first)
    return Trial(replace(cluster, nodes=nodes), () if first is None else first[0], attempt.features)


def _refused_by(attempt: Attempt, plugin: str) -> Iterator[Site]:
    for name, refusal in attempt.refusals.items():
        if refusal is not None and refusal.plugin == plugin:
            yield attempt.snapshot.sites[name]


def _to_the_pod(attempt: Attempt) -> Iterator[Suggestion]:  # noqa: C901  # one change after the other
    pod = attempt.pod
    lacking: dict[str, list[tuple[int, Site]]] = {}
    for site in _refused_by(attempt, "NodeResourcesFit"):
        shortages = attempt.resources.shortages(site)
        if len(shortages) == 1 and shortages[0].resource != "pods":
            resource, free = shortages[0].resource, shortages[0].free
            less = free // _MEBI * _MEBI if is_bytes(resource) else free
            if less > 0:
                lacking.setdefault(resource, []).append((less, site))
    for resource, places in lacking.items():
        places.sort(key=lambda place: -place[0])
        for less, site in places[:_TRIED]:
            if _fits(attempt, replace(pod, amounts={**pod.amounts, resource: less}), site):
                asked = f"{less // _MEBI}Mi" if is_bytes(resource) else amount(resource, less)
                text = f"ask for {asked} {resource} instead of {amount(resource, pod.amounts[resource])}"
                yield Suggestion(text, site.node.name)
                break
    tainted: dict[DeviceTaint, list[Site]] = {}
    for site in _refused_by(attempt, "TaintToleration"):
        taint = untolerated(site.node.taints, pod.tolerations)
        if taint is not None:
            tainted.setdefault(taint, []).append(site)
    for taint, sites in tainted.items():
        tolerant = replace(pod, tolerations=(*pod.tolerations, tolerating(taint)))
        yield from _first(attempt, tolerant, sites, f"tolerate the node's taint {taint_text(taint)}")
    unselected = list(_refused_by(attempt, "NodeAffinity"))
    for key, value in pod.node_selector.items():
        rest = {name: one for name, one in pod.node_selector.items() if name != key}
        yield from _first(attempt, replace(pod, node_selector=rest), unselected, f"remove nodeSelector {key}={value}")


def _to_nodes(attempt: Attempt) -> Iterator[Suggestion]:
    for site in list(_refused_by(attempt, "NodeUnschedulable"))[:_TRIED]:
        node = site.node
        taints = tuple(taint for taint in node.taints if taint.key != _CORDONED)
        if attempt.refuses(replace(site, node=replace(node, unschedulable=False, taints=taints))) is None:
            yield Suggestion(f"uncordon {node.name}", node.name)
            return


def _first(attempt: Attempt, pod: Pod, sites: Sequence[Site], text: str) -> Iterator[Suggestion]:
    """The change, with the first node that accepts the pod after it."""
    for site in sites[:_TRIED]:
        if _fits(attempt, pod, site):
            yield Suggestion(text, site.node.name)
            return


def _fits(attempt: Attempt, pod: Pod, site: Site) -> bool:
    changed = replace(attempt, pod=pod)
    return changed.refusal is None and changed.refuses(site) is None
