# SPDX-License-Identifier: Apache-2.0
"""How many copies fit: the shortcut over nodes that are alike counts what placing one after the other counts."""

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.dryrun.documents import parse
from dra_driver.dryrun.replicas import Copies, count_copies, only
from dra_driver.dryrun.workload import Demand, sort_documents
from dra_driver.kube.resource import ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import Decoded
from dra_driver.process.command import InputError
from dra_driver.scheduler.allocator import Cluster, Features, allocate_all
from tests.dryrun.clusters import with_defaults
from tests.support import examples

from .clusters import cluster, devices_of, holding, node, wanting
from .conftest import DryRun, Write, gpu, slice_of
from .test_command import claim

FEATURES = Features()


def counted(wanted: ResourceClaim, objects: Sequence[Decoded], most: int = 100) -> Copies:
    demand = Demand("the claim", (wanted,))
    return count_copies(demand, with_defaults(objects), FEATURES, most)


def placed_one_by_one(wanted: ResourceClaim, objects: Sequence[Decoded]) -> Counter[str]:
    """The copies by node, when each goes to the first node that has room for it."""
    found: Counter[str] = Counter()
    state = cluster(objects)
    while True:
        outcomes = allocate_all(state, [wanted], FEATURES)
        first = next((name for name in outcomes if outcomes[name].kind == "allocated"), None)
        if first is None:
            return found
        found[first] += 1
        taken = replace(wanted, allocation=outcomes[first].allocations[0])
        state = Cluster(state.slices, state.classes, state.nodes, (*state.claims, taken))


NODES = [*node(1), *node(2), *node(3, gpus=2)]
SHARED = [
    # One pool that all nodes reach, which makes a copy on one node count on the others.
    replace(one, node_name=None, all_nodes=True) if isinstance(one, ResourceSlice) else one
    for one in node(4)
]
DEVICES = [(pool, name) for pool, name, _ in devices_of([*NODES, *SHARED])]
PROFILES = sorted({profile for _, _, profile in devices_of(NODES)})


@settings(max_examples=examples(40))
@given(
    st.lists(st.sampled_from(DEVICES), max_size=4, unique=True),
    st.sampled_from(PROFILES),
    st.integers(1, 2),
    st.booleans(),
)
def test_copies_are_those_of_placing_one_after_the_other(
    held: list[tuple[str, str]], profile: str, count: int, shared: bool
) -> None:
    objects = [*NODES, *(SHARED if shared else ()), *(holding(f"held-{name}", pool, name) for pool, name in held)]
    wanted = wanting(profile, count)
    assert counted(wanted, objects) == Copies(dict(placed_one_by_one(wanted, objects)))


def test_counting_ends_with_as_many_as_were_asked_for() -> None:
    assert counted(wanting("1g.6gb"), NODES, most=6) == Copies({"new-a30-1": 4, "new-a30-2": 2}, more=True)
    assert counted(wanting("1g.6gb"), NODES, most=8) == Copies({"new-a30-1": 4, "new-a30-2": 4}, more=True)
    assert counted(wanting("1g.6gb"), NODES, most=16) == Copies({"new-a30-1": 4, "new-a30-2": 4, "new-a30-3": 8})


def test_admin_access_fits_without_limit() -> None:
    wanted = wanting("1g.6gb")
    (request,) = wanted.spec.requests
    assert request.exactly is not None
    admin = replace(request, exactly=replace(request.exactly, admin_access=True))
    found = counted(replace(wanted, spec=replace(wanted.spec, requests=(admin,))), NODES, most=50)
    assert found == Copies({"new-a30-1": 50}, more=True)


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 3
  template:
    spec:
      resourceClaims: [{name: gpu, resourceClaimTemplateName: t}]
      containers: []
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, namespace: default}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""


def test_the_pods_of_a_workload_are_one_thing_to_copy() -> None:
    demands = sort_documents(parse(DEPLOYMENT, "d.yaml")).demands
    assert len(demands) == 3
    assert only(demands) is demands[0]


def test_replicas_of_two_demands_are_refused() -> None:
    with pytest.raises(InputError, match="one pod, template or claim, and there are a and b"):
        only([Demand("a", (wanting("1g.6gb"),)), Demand("b", (wanting("2g.12gb"),))])


@pytest.mark.parametrize(("gpus", "code"), [(2, 1), (3, 0)])
def test_all_copies_are_at_least_those_that_the_manifest_asks_for(
    gpus: int, code: int, dryrun: DryRun, write: Write
) -> None:
    slices = write("slices.json", slice_of("a", *(gpu(f"gpu-{number}") for number in range(gpus))))
    whole = DEPLOYMENT.replace("containers: []", "containers: [{name: a, image: b}]").replace(
        "  template:\n    spec:",
        "  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:",
    )
    found, out, _ = dryrun("--slices", slices, "--replicas", "max", write("deployment.yaml", whole))
    assert found == code, out
    said = f"{gpus} fit  copies of Deployment d: {gpus} now, {gpus} with nothing in use; the manifest asks for 3"
    assert said in out


def test_the_command_tells_now_from_nothing_in_use(dryrun: DryRun, write: Write) -> None:
    held = textwrap.dedent("""
        ---
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {name: held, namespace: default}
        spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
        status:
          allocation:
            devices: {results: [{request: gpu, driver: gpu.nvidia.com, pool: node-a, device: gpu-1}]}
        """)
    slices = "\n---\n".join(
        json.dumps(slice_of(name, *(gpu(f"gpu-{number}") for number in range(3)))) for name in ("node-a", "node-b")
    )
    source = ("--slices", write("cluster.yaml", slices + held), write("claim.yaml", claim()))
    code, out, _ = dryrun(*source, "--replicas", "max")
    assert code == 0
    assert "5 fit  copies of ResourceClaim wanted: 5 now, 6 with nothing in use" in out
    assert [line.split() for line in out.splitlines()[-2:]] == [["node-a", "2", "3"], ["node-b", "3", "3"]]
    code, out, _ = dryrun(*source, "--replicas", 6, "-o", "json")
    assert code == 1
    found = json.loads(out)
    assert not found["fits"]
    assert found["replicas"]["wanted"] == 6
    assert found["replicas"]["now"] == {
        "copies": 5,
        "more": False,
        "nodes": [{"node": "node-a", "copies": 2}, {"node": "node-b", "copies": 3}],
    }
    assert found["replicas"]["nothingInUse"]["copies"] == 6
    assert dryrun(*source, "--replicas", 5)[0] == 0


@pytest.mark.parametrize("value", ["0", "-1", "many", "10001"])
def test_a_count_that_is_none_is_refused(value: str, dryrun: DryRun, write: Write) -> None:
    code, _, err = dryrun(write("claim.yaml", claim()), f"--replicas={value}")
    assert code == 2
    assert "neither 'max' nor a number from 1 to 10000" in err
