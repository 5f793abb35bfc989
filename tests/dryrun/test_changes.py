# SPDX-License-Identifier: Apache-2.0
"""Every suggestion, carried out, makes the claims fit: over all of Kubernetes' own scenarios in which nothing does."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.changes import Trial, defect, helpful_changes
from dra_driver.kube.resource import ResourceClaim
from dra_driver.scheduler.allocator import Cluster, allocate_all
from tests import golden
from tests.golden.allocation.scenario import Scenario, load

FOLDER = Path(golden.__file__).parent / "allocation"


def fits(cluster: Cluster, claims: tuple[ResourceClaim, ...], scenario: Scenario) -> bool:
    outcomes = allocate_all(cluster, claims, scenario.features)
    return any(group.outcome.kind == "allocated" for group in outcomes.groups)


def without_claims(cluster: Cluster, names: set[str]) -> Cluster:
    kept = tuple(claim for claim in cluster.claims if str(claim.metadata) not in names)
    return Cluster(cluster.slices, cluster.classes, cluster.nodes, kept)


def answers(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_suffix(".expect.json").read_bytes())
    return found


def is_hopeless(path: Path) -> bool:
    return all(one["outcome"] != "allocated" for one in answers(path)["nodes"].values())


HOPELESS = [path for path in sorted(FOLDER.glob("*/*.yaml")) if is_hopeless(path)]


def test_there_are_scenarios_in_which_nothing_fits() -> None:
    assert len(HOPELESS) > 100


@pytest.mark.parametrize("path", HOPELESS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_is_suggested_helps(path: Path) -> None:
    scenario = load(path)
    cluster, claims = scenario.cluster, scenario.cluster.pending
    assert claims
    assert not fits(cluster, claims, scenario)
    for change in helpful_changes(Trial(cluster, claims, scenario.features), cluster.allocated):
        assert change.node in cluster.node_by_name
        if change.text.startswith("wait for claim"):
            names = set(re.sub(r"^wait for claims? ", "", change.text).split(", "))
            assert fits(without_claims(cluster, names), claims, scenario)
            for name in names if len(names) > 1 else ():
                assert not fits(without_claims(cluster, names - {name}), claims, scenario), "one claim too many"
        if change.text.startswith("remove the constraint"):
            unconstrained = tuple(replace(one, spec=replace(one.spec, constraints=())) for one in claims)
            assert fits(cluster, unconstrained, scenario) or len(claims) > 1 or len(claims[0].spec.constraints) > 1


def test_the_scheduler_is_blamed_where_its_own_defect_decides() -> None:
    """Scenarios that Kubernetes' generator marked: freeing the counters of refused candidates changes an answer."""
    leaking = [load(path) for path in HOPELESS if "counter-leak" in (answers(path).get("quirks") or ())]
    assert leaking
    blamed = [defect(Trial(one.cluster, one.cluster.pending, one.features)) for one in leaking]
    assert any(fault is not None and "140436" in fault.text for fault in blamed)
