# SPDX-License-Identifier: Apache-2.0
"""Every suggestion, carried out, makes the claims fit: over all of Kubernetes' own scenarios in which nothing does."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.allocation import Cluster, allocate_all
from dra_driver.dryrun.changes import helpful_changes
from dra_driver.dryrun.defects import defect
from dra_driver.resource import ResourceClaim
from tests import golden
from tests.golden.allocation.scenario import Scenario, scenarios

FOLDER = Path(golden.__file__).parent / "allocation"


def fits(cluster: Cluster, claims: tuple[ResourceClaim, ...], scenario: Scenario) -> bool:
    outcomes = allocate_all(cluster, claims, scenario.features)
    return any(group.outcome.kind == "allocated" for group in outcomes.groups)


def without_claims(cluster: Cluster, names: set[str]) -> Cluster:
    kept = tuple(claim for claim in cluster.claims if str(claim.metadata) not in names)
    return Cluster(cluster.slices, cluster.classes, cluster.nodes, kept)


HOPELESS = [one for one in scenarios(FOLDER) if one.cluster.pending and not fits(one.cluster, one.cluster.pending, one)]


def test_there_are_scenarios_in_which_nothing_fits() -> None:
    assert len(HOPELESS) > 100


@pytest.mark.parametrize("scenario", HOPELESS, ids=str)
def test_what_is_suggested_helps(scenario: Scenario) -> None:
    cluster, claims = scenario.cluster, scenario.cluster.pending
    for change in helpful_changes(cluster, claims, scenario.features):
        assert change.node in cluster.node_by_name
        if change.text.startswith("wait for claim"):
            names = set(re.sub(r"^wait for claims? ", "", change.text).split(", "))
            assert fits(without_claims(cluster, names), claims, scenario)
            for name in names if len(names) > 1 else ():
                assert not fits(without_claims(cluster, names - {name}), claims, scenario), "one claim too many"
        if change.text.startswith("drop the constraint"):
            unconstrained = tuple(replace(one, spec=replace(one.spec, constraints=())) for one in claims)
            assert fits(cluster, unconstrained, scenario) or len(claims) > 1 or len(claims[0].spec.constraints) > 1


def test_the_scheduler_is_blamed_where_its_own_defect_decides() -> None:
    """Scenarios that Kubernetes' generator marked: freeing the counters of refused candidates changes an answer."""
    leaking = [one for one in HOPELESS if "counter-leak" in (json.loads(expectation(one)).get("quirks") or ())]
    assert leaking
    blamed = [defect(one.cluster, one.cluster.pending, one.features) for one in leaking]
    assert any(fault is not None and "140436" in fault.text for fault in blamed)


def expectation(scenario: Scenario) -> str:
    return (FOLDER / scenario.category / f"{scenario.name}.expect.json").read_text(encoding="utf-8")
