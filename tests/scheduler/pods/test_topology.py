# SPDX-License-Identifier: Apache-2.0
"""Rules of the topology filters that differ between releases."""

from dataclasses import replace

import pytest

from dra_driver.scheduler.allocator import Features

from .build import attempt, node, pod

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
