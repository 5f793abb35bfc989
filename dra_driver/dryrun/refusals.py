# SPDX-License-Identifier: Apache-2.0
"""Why nodes refuse a demand, in words: nodes grouped by reason, and for a pod one line about all nodes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..kube.resource import ResourceClaim
from ..scheduler.allocator import Check
from ..scheduler.pods import Attempt, Refusal, Shortage, Site
from ..scheduler.pods.devices import PLUGIN as DEVICES
from ..scheduler.pods.node_filters import untolerated
from .affinity import PLUGIN as AFFINITY
from .affinity import affinity_phrases
from .amounts import amount
from .explain import MOST_EXPLAINED, Explainer, Explanation, RequestReport, taint_text
from .trial import ClaimTrial, PodTrial
from .verdict import Refused

_PROFILE: Final = re.compile(r"""\.profile\s*==\s*(["'])([^"']+)\1""")
_FREE_CHECKS: Final = frozenset({Check.IN_USE, Check.COUNTERS, Check.CAPACITY})
_PHRASES: Final[Mapping[str, tuple[str, str]]] = {
    "NodeUnschedulable": ("is cordoned", "are cordoned"),
    "NodeName": ("is not the node that the pod names", "are not the node that the pod names"),
    "NodeAffinity": (
        "does not match the pod's node selector or affinity",
        "do not match the pod's node selector or affinity",
    ),
    "NodePorts": ("has a host port taken that the pod wants", "have a host port taken that the pod wants"),
    "": ("is not among the nodes that the pod names", "are not among the nodes that the pod names"),
}
"""The texts for one node and for several, by the scheduler's name of the filter."""


def refused_nodes(trial: ClaimTrial | PodTrial) -> tuple[Refused, ...]:
    """The nodes that refuse a demand, grouped by reason. Nodes that lack only devices are first, the closest of them at
    the top. If an error ends the scheduling of the pod on every node, it is the only reason.
    """
    by_devices, others = _of_pod(trial) if isinstance(trial, PodTrial) else _of_claims(trial)
    fatal = [refused for refused in by_devices if refused.explanation.fatal]
    return tuple(fatal[:1] or [*sorted(by_devices, key=lambda refused: refused.explanation.distance), *others])


def _of_claims(trial: ClaimTrial) -> tuple[list[Refused], list[Refused]]:
    """The nodes that lack devices, and the nodes where the pod cannot be."""
    explainer = Explainer(trial.cluster, trial.features)
    by_devices = [
        Refused(group.nodes, explainer.explain(trial.claims, group.outcome))
        for group in trial.outcomes.groups[:MOST_EXPLAINED]
        if group.outcome.kind != "allocated"
    ]
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in trial.away.items():
        by_reason[reason].append(name)
    return by_devices, [Refused(tuple(names), Explanation(reason, False)) for reason, names in by_reason.items()]


def _of_pod(trial: PodTrial) -> tuple[list[Refused], list[Refused]]:
    """The nodes that lack only devices, and the other nodes."""
    attempt = trial.attempt
    by_devices: list[str] = []
    others: dict[tuple[str, str], list[str]] = defaultdict(list)
    lacking: dict[tuple[str, ...], list[tuple[str, list[Shortage]]]] = defaultdict(list)
    for name, refusal in attempt.refusals.items():
        site = attempt.snapshot.sites[name]
        if refusal is None:
            continue
        if refusal.plugin == DEVICES:
            by_devices.append(name)
        elif shortages := attempt.resources.shortages(site) if refusal.plugin == "NodeResourcesFit" else []:
            lacking[tuple(shortage.resource for shortage in shortages)].append((name, shortages))
        else:
            others[_phrases(attempt, site, refusal)].append(name)
    found = [_short_of_resources(members) for members in lacking.values()]
    found += [_refused(names, *phrases) for phrases, names in others.items()]
    return _of_node(_without_devices(attempt, by_devices), trial), _of_node(found, trial)


def _of_node(found: Iterable[Refused], trial: PodTrial) -> list[Refused]:
    """All refusals, or for a pod of a DaemonSet that of its node."""
    node = trial.daemon_node
    return [replace(refused, nodes=(node,)) if node else refused for refused in found if node in (*refused.nodes, "")]


def summary(found: Sequence[Refused]) -> str:
    """`3 nodes: 1 lacks cpu (needs 8, has 3.5 free), 2 have no free 3g.40gb`."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for refused in sorted(found, key=lambda refused: bool(refused.explanation.requests)):
        counts[refused.one, refused.many] += len(refused.nodes)
    nodes = sum(counts.values())
    parts = [f"{count} {one if count == 1 else many}" for (one, many), count in counts.items()]
    return f"{nodes} node{'' if nodes == 1 else 's'}: {', '.join(parts)}"


def _refused(nodes: Sequence[str], one: str, many: str = "") -> Refused:
    many = many or one
    return Refused(tuple(nodes), Explanation(one if len(nodes) == 1 else many, False), one, many)


def _phrases(attempt: Attempt, site: Site, refusal: Refusal) -> tuple[str, str]:
    if refusal.plugin == "TaintToleration":
        taint = untolerated(site.node.taints, attempt.pod.tolerations)
        if taint is not None:
            what = f"taint {taint_text(taint)}, which the pod does not tolerate"
            return f"has {what}", f"have {what}"
    if refusal.plugin in _PHRASES:
        return _PHRASES[refusal.plugin]
    if refusal.plugin == AFFINITY and any(phrases := affinity_phrases(attempt, site)):
        return phrases
    said = ", ".join(reason.removeprefix("node(s) ") for reason in refusal.reasons)
    return said, said


def _short_of_resources(members: Sequence[tuple[str, Sequence[Shortage]]]) -> Refused:
    """Nodes that lack the same resources. The text for several has the amount of the best node."""
    names = [name for name, _ in members]
    columns = list(zip(*(shortages for _, shortages in members), strict=True))
    one = " and ".join(_lack(column, "needs", "has") for column in columns)
    many = " and ".join(_lack(column, "need", "have") for column in columns)
    return _refused(names, f"lacks {one}", f"lack {many}")


def _lack(column: Sequence[Shortage], needs: str, has: str) -> str:
    best = max(column, key=lambda shortage: shortage.free)
    if best.resource == "pods":
        return f"room for another pod (at most {max(shortage.allocatable for shortage in column)} may run)"
    most = "at most " if len({shortage.free for shortage in column}) > 1 else ""
    free, wanted = amount(best.resource, max(0, best.free)), amount(best.resource, best.wanted)
    if free == wanted:  # rounded, they look the same
        free, wanted = str(best.free), str(best.wanted)
    return f"{best.resource} ({needs} {wanted}, {has} {most}{free} free)"


def _without_devices(attempt: Attempt, names: Sequence[str]) -> Iterator[Refused]:
    devices = attempt.devices
    explainer = Explainer(attempt.snapshot.cluster, attempt.features)
    left = dict.fromkeys(names)
    explained = 0
    for name in names:
        if name not in left:
            continue
        if explained == MOST_EXPLAINED:
            yield _refused(tuple(left), "cannot give the devices")
            return
        explained += 1
        site = attempt.snapshot.sites[name]
        decided = devices.decided(site)
        outcome = decided[1][name] if decided is not None else None
        if decided is None or outcome is None or outcome.kind == "allocated":
            del left[name]
            refusal = attempt.refusals[name]
            yield _refused([name], refusal.message if refusal is not None else "")
            continue
        claims, outcomes = decided
        group = next(group for group in outcomes.groups if name in group.nodes)
        alike = [
            node for node in group.nodes if node in left and devices.decided(attempt.snapshot.sites[node]) is decided
        ]
        for node in alike:
            del left[node]
        explanation = explainer.explain(claims, outcome)
        yield Refused(tuple(alike), explanation, *_device_words(explanation, claims, attempt))


def _device_words(explanation: Explanation, claims: Sequence[ResourceClaim], attempt: Attempt) -> tuple[str, str]:
    if explanation.error or not explanation.requests:
        said = explanation.error or "no devices to give"
        return f"cannot give devices: {said}", f"cannot give devices: {said}"
    request = next((request for request in explanation.requests if request.missing), None)
    if request is None:
        together = "cannot give the devices together"
        return together, together
    free = "free " if any(removal.check in _FREE_CHECKS for removal in request.removals) else ""
    wanted = _wanted(request, claims, attempt)
    what = f"no {free}{wanted}"
    if request.left:
        plural = "s" if wanted.endswith("device") and request.left > 1 else ""
        what = f"only {request.left} {free}{wanted}{plural} of the {request.wanted} that the pod needs"
    return f"has {what}", f"have {what}"


def _wanted(request: RequestReport, claims: Sequence[ResourceClaim], attempt: Attempt) -> str:
    """The object of a request, in words: a profile, an extended resource, or a device of a class."""
    for claim in claims:
        if str(claim.metadata) != request.claim:
            continue
        for name, required in claim.spec.requirements:
            if name != request.request:
                continue
            profiles = [found[2] for text in required.selectors if (found := _PROFILE.search(text))]
            if profiles:
                return profiles[0]
            served = [request.resource for request in attempt.pod.extended if request.request == name]
            return served[0] if served else f"{required.device_class_name} device"
    return "device"
