# SPDX-License-Identifier: Apache-2.0
"""Claims that are shared, or have their devices already."""

from typing import Any

import pytest

from dra_driver.dryrun.documents import Document
from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.verdict import Verdict
from dra_driver.dryrun.workload import sort_documents
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.clusters import with_defaults

from .conftest import gpu, slice_of

JSON = dict[str, Any]


def shared_claim(node: str = "") -> JSON:
    """A claim of one GPU; with `node` it has gpu-0 there."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    value: JSON = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "shared", "namespace": "team"},
        "spec": {"devices": {"requests": [request]}},
    }
    if node:
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": "gpu-0"}
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        value["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}
    return value


def pod(name: str, **spec: Any) -> JSON:
    claims = [{"name": "gpu", "resourceClaimName": "shared"}]
    body = {"containers": [{"name": "c", "resources": {"claims": [{"name": "gpu"}]}}], "resourceClaims": claims, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"}, "spec": body}


def verdicts(*documents: JSON, cluster: tuple[JSON, ...]) -> list[Verdict]:
    given = sort_documents([Document(one, "file") for one in documents])
    objects = with_defaults([*given.objects, *(decode(one) for one in cluster)])
    return evaluate(given.demands, objects, Features())


NODES = (slice_of("node-a", gpu("gpu-0")), slice_of("node-b", gpu("gpu-0")))


def test_pods_that_share_a_claim_share_its_device_and_its_node() -> None:
    first, second = verdicts(shared_claim(), pod("one"), pod("two"), cluster=NODES)
    assert (first.node, second.node) == ("node-a", "node-a")
    assert [one.name for one in first.placed] == [one.name for one in second.placed] == ["gpu-0"]


def test_a_claim_that_has_its_device_keeps_the_pod_there() -> None:
    (found,) = verdicts(shared_claim(), pod("one"), cluster=(*NODES, shared_claim("node-b")))
    assert found.fitting == ("node-b",)
    (found,) = verdicts(shared_claim(), pod("one", nodeName="node-a"), cluster=(*NODES, shared_claim("node-b")))
    assert found.node is None
    assert any("claim team/shared is allocated" in one.explanation.error for one in found.refused)


def test_a_node_where_the_pod_cannot_go_suggests_nothing() -> None:
    """node-b has what the claim asks for: no change to the claim would be what makes it fit there."""
    wanted = shared_claim()
    constraint = {"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/productName"}
    wanted["spec"]["devices"]["constraints"] = [constraint]
    slices = (slice_of("node-a"), slice_of("node-b", gpu("gpu-0")))
    (found,) = verdicts(wanted, pod("one", nodeName="node-a"), cluster=slices)
    assert found.node is None
    assert found.changes == ()
    assert found.defect is None


def test_an_allocation_with_an_unusable_node_selector_keeps_the_pod_away() -> None:
    broken = shared_claim("node-b")
    (term,) = broken["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    term["matchFields"][0]["operator"] = "Near"
    (found,) = verdicts(shared_claim(), pod("one"), cluster=(*NODES, broken))
    assert found.node is None
    assert all("node selector that cannot be used" in one.explanation.error for one in found.refused)


@pytest.mark.parametrize("namespace", ["team", ""])
def test_pods_of_a_workload_have_claims_of_their_own_in_their_namespace(namespace: str) -> None:
    meta = {"name": "gpu"} | ({"namespace": namespace} if namespace else {})
    template = {
        **shared_claim(),
        "kind": "ResourceClaimTemplate",
        "metadata": meta,
        "spec": {"spec": shared_claim()["spec"]},
    }
    spec = pod("x")["spec"] | {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**meta, "name": "train"},
        "spec": {"parallelism": 2, "template": {"spec": spec}},
    }
    found = verdicts(template, job, cluster=NODES)
    assert [one.claim for verdict in found for one in verdict.placed] == [
        f"{namespace or 'default'}/train-{index}-gpu" for index in range(2)
    ]


@pytest.mark.parametrize(("sharing", "noted"), [({"strategy": "Mps"}, True), ({"strategy": "MPS"}, False)])
def test_a_configuration_that_the_driver_refuses_on_the_node_is_a_problem(sharing: JSON, noted: bool) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    claim = shared_claim()
    claim["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]
    (found,) = verdicts(claim, pod("one"), cluster=NODES)
    path = "spec.devices.config[0].opaque.parameters.sharing.strategy"
    assert found.node == "node-a"
    assert [note.partition(": must be")[0] for note in found.problems] == (
        [f"claim team/shared: the driver refuses it on the node: {path}"] if noted else []
    )
