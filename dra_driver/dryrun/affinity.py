# SPDX-License-Identifier: Apache-2.0
"""Which rule of pod affinity or anti-affinity keeps a pod from a node, in words."""

from typing import Final

from ..kube.resource import NodeSelectorRequirement
from ..scheduler.pods import Attempt, Site
from ..scheduler.pods.objects import AffinityTerm, LabelSelector, Pod

PLUGIN: Final = "InterPodAffinity"


def affinity_phrases(attempt: Attempt, site: Site) -> tuple[str, str]:
    """The texts for one node and for several. Both are empty if the rule is one of another pod."""
    pod = attempt.pod
    for term in pod.affinity:
        key, rule = term.topology_key, f"the pod's affinity rule ({_shown(term)})"
        if all(key not in other.node.labels for other in attempt.snapshot.sites.values()):
            why = f"no node has the label {key}"
            return f"fails {rule}: {why}", f"fail {rule}: {why}"
        if key not in site.node.labels:
            return f"lacks the label {key} of {rule}", f"lack the label {key} of {rule}"
        if not any(_matches(term, other, attempt) for other in _pods(attempt, term, site)):
            there = any(
                _matches(term, other, attempt) for site in attempt.snapshot.sites.values() for other in site.pods
            )
            why = f"the pods that match are elsewhere by {key}" if there else "no pod on any node matches"
            return f"fails {rule}: {why}", f"fail {rule}: {why}"
    for term in pod.anti_affinity:
        if any(_matches(term, other, attempt) for other in _pods(attempt, term, site)):
            said = f"a pod that matches the pod's anti-affinity rule ({_shown(term)})"
            return f"has {said}", f"have {said}"
    return "", ""


def _pods(attempt: Attempt, term: AffinityTerm, site: Site) -> list[Pod]:
    """The pods in the same domain as the node."""
    key = term.topology_key
    domain = site.node.labels.get(key)
    sites = attempt.snapshot.sites.values()
    return [pod for site in sites if domain is not None and site.node.labels.get(key) == domain for pod in site.pods]


def _matches(term: AffinityTerm, pod: Pod, attempt: Attempt) -> bool:
    return term.matches(pod, attempt.snapshot.labels_of(pod.namespace))


def _shown(term: AffinityTerm) -> str:
    """A term for people: `pods with app=web, in the same kubernetes.io/hostname`."""
    return f"pods with {_selector(term.selector)}, in the same {term.topology_key}"


def _selector(selector: LabelSelector) -> str:
    """A label selector as kubectl writes it."""
    return ",".join(map(_requirement, selector.requirements)) or "any labels"


def _requirement(requirement: NodeSelectorRequirement) -> str:
    if requirement.operator == "In" and len(requirement.values) == 1:
        return f"{requirement.key}={requirement.values[0]}"
    if requirement.operator in ("Exists", "DoesNotExist"):
        return requirement.key if requirement.operator == "Exists" else f"!{requirement.key}"
    word = "in" if requirement.operator == "In" else "notin"
    return f"{requirement.key} {word} ({','.join(requirement.values)})"
