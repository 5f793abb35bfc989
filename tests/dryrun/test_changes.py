# SPDX-License-Identifier: Apache-2.0
"""Every suggestion, carried out, makes the claims fit: over all of Kubernetes' own scenarios in which nothing does."""

import re
from dataclasses import replace
from pathlib import Path

from dra_driver.dryrun.changes import helpful_changes
from dra_driver.dryrun.defects import defect
from dra_driver.dryrun.trial import ClaimTrial
from dra_driver.kube.resource import ResourceClaim
from dra_driver.scheduler.allocator import Cluster, allocate_all
from tests import golden
from tests.golden.allocation.scenario import Scenario, load
from tests.golden.stored import StoredScenario, stored_scenarios

FOLDER = Path(golden.__file__).parent / "allocation"


def fits(cluster: Cluster, claims: tuple[ResourceClaim, ...], scenario: Scenario) -> bool:
    outcomes = allocate_all(cluster, claims, scenario.features)
    return any(group.outcome.kind == "allocated" for group in outcomes.groups)


def without_claims(cluster: Cluster, names: set[str]) -> Cluster:
    kept = tuple(claim for claim in cluster.claims if str(claim.metadata) not in names)
    return Cluster(cluster.slices, cluster.classes, cluster.nodes, kept)


def is_hopeless(stored: StoredScenario) -> bool:
    return all(node["outcome"] != "allocated" for node in stored.expected()["nodes"].values())


def hopeless() -> list[StoredScenario]:
    """The scenarios in which nothing fits."""
    return [stored for stored in stored_scenarios(FOLDER) if is_hopeless(stored)]


def test_more_than_100_scenarios_have_nothing_that_fits() -> None:
    assert len(hopeless()) > 100


def test_suggestions_make_claims_fit() -> None:
    for stored in hopeless():
        require_that_suggestions_help(str(stored), load(stored))


def require_that_suggestions_help(name: str, scenario: Scenario) -> None:
    """Nothing fits in the scenario of this name, and each suggestion changes that."""
    cluster, claims = scenario.cluster, scenario.cluster.pending
    assert claims, name
    assert not fits(cluster, claims, scenario), name
    for change in helpful_changes(ClaimTrial(cluster, claims, scenario.features), cluster.allocated):
        where = f"{name}: {change.text}"
        assert change.node in cluster.node_by_name, where
        if change.text.startswith("wait for claim"):
            waited = set(re.sub(r"^wait for claims? ", "", change.text).split(", "))
            assert fits(without_claims(cluster, waited), claims, scenario), where
            for one in waited if len(waited) > 1 else ():
                assert not fits(without_claims(cluster, waited - {one}), claims, scenario), f"{where}: one too many"
        if change.text.startswith("remove the constraint"):
            unconstrained = tuple(replace(one, spec=replace(one.spec, constraints=())) for one in claims)
            several = len(claims) > 1 or len(claims[0].spec.constraints) > 1
            assert several or fits(cluster, unconstrained, scenario), where


def test_the_scheduler_is_blamed_where_its_own_defect_decides() -> None:
    """Scenarios that Kubernetes' generator marked: freeing the counters of refused candidates changes an answer."""
    leaking = [load(stored) for stored in hopeless() if "counter-leak" in (stored.expected().get("quirks") or ())]
    assert leaking
    blamed = [defect(ClaimTrial(one.cluster, one.cluster.pending, one.features)) for one in leaking]
    assert any(fault is not None and "140436" in fault.text for fault in blamed)
