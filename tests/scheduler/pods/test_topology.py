# SPDX-License-Identifier: Apache-2.0
"""Rules of the topology filters: those that differ between releases, and a defect."""

from dataclasses import replace

import pytest

from dra_driver.scheduler.allocator import Features

from .build import JSON, attempt, node, pod

SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


@pytest.mark.parametrize(
    ("release", "selector", "refused"),
    [
        ("1.36", {}, False),
        ("1.37", {}, False),
        ("1.38", {}, True),
        ("1.38", None, False),
        ("1.37", {"matchLabels": {"app": "web"}}, True),
    ],
)
def test_empty_selector_of_spread_constraint_counts_pods_since_1_38(
    release: str, selector: dict[str, object] | None, refused: bool
) -> None:
    constraint = SPREAD if selector is None else {**SPREAD, "labelSelector": selector}
    labels = {"labels": {"app": "web"}}
    running = [pod(f"p{index}", nodeName="a", metadata=labels) for index in range(2)]
    wanted = pod("wanted", topologySpreadConstraints=[constraint], metadata=labels)
    tried = attempt(wanted, node("a", {"zone": "a"}), node("b", {"zone": "b"}), *running)
    found = replace(tried, features=Features.from_gates({}, release=release)).refusals
    assert (found["a"] is not None) is refused
    assert found["b"] is None


@pytest.mark.parametrize(
    ("expression", "refused"),
    [
        ({"key": "team", "operator": "In", "values": ["b"]}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "operator": "NotIn", "values": ["a"]}, True),
        ({"key": "team", "operator": "DoesNotExist"}, True),
    ],
)
def test_namespace_selector_that_only_excludes_selects_all_namespaces(expression: JSON, refused: bool) -> None:
    labels = {"labels": {"app": "web"}}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    apart = {**term, "namespaceSelector": {"matchExpressions": [expression]}}
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": {"team": "a"}}}
    running = pod("running", nodeName="a", metadata={"namespace": "team-a", **labels})
    tried = attempt(pod("wanted", affinity=rules, metadata=labels), node("a", {"zone": "a"}), team, running)
    assert (tried.refusals["a"] is not None) is refused
