# SPDX-License-Identifier: Apache-2.0
"""A snapshot decides as the cluster does, whether or not its names were replaced."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.allocation import Cluster, Features, NodeOutcome, allocate_all
from dra_driver.dryrun.pseudonyms import anonymise
from dra_driver.dryrun.snapshot import encoded
from dra_driver.kubeapi import NODES, ApiClient
from dra_driver.resource.codec import Decoded, decode, encode_allocation
from tests.golden.allocation.scenario import Scenario, load
from tests.support.apiserver import CLAIMS, SLICES

from .conftest import DryRun, Write, gpu, slice_of

FOLDER = Path(__file__).parents[1] / "golden" / "allocation"
SCENARIOS = sorted(FOLDER.glob("*/*.yaml"))


def objects_of(cluster: Cluster) -> list[Decoded]:
    return [*cluster.slices, *cluster.classes, *cluster.nodes, *cluster.claims]


def decided(documents: Sequence[dict[str, Any]], features: Features) -> list[NodeOutcome]:
    """What each node answers to the pending claims, in the order of the nodes."""
    cluster = Cluster.of(decode(one) for one in documents)
    outcomes = allocate_all(cluster, cluster.pending, features, share_ids=lambda: "a-share")
    return [outcomes[node.name] for node in cluster.nodes]


def answer(outcome: NodeOutcome) -> object:
    return outcome.kind, outcome.error_kind, outcome.fatal, [encode_allocation(one) for one in outcome.allocations]


def without_names(outcome: NodeOutcome) -> object:
    """The answer but for pools, labels and configurations."""
    devices = [[(one.request, one.driver, one.device) for one in given.results] for given in outcome.allocations]
    selectors = [given.node_selector is None for given in outcome.allocations]
    return outcome.kind, outcome.error_kind, outcome.fatal, devices, selectors


@pytest.mark.parametrize("category", sorted({path.parent.name for path in SCENARIOS}))
def test_every_decision_on_a_snapshot_is_the_clusters(category: str) -> None:
    for path in (one for one in SCENARIOS if one.parent.name == category):
        scenario: Scenario = load(path)
        objects = objects_of(scenario.cluster)
        original = allocate_all(
            scenario.cluster, scenario.cluster.pending, scenario.features, share_ids=lambda: "a-share"
        )
        expected = [original[node.name] for node in scenario.cluster.nodes]
        documents = list(encoded(objects))
        assert [*map(answer, decided(documents, scenario.features))] == [*map(answer, expected)], path
        nameless = anonymise(documents)
        assert anonymise(nameless) == nameless, path
        found = decided(nameless, scenario.features)
        assert [*map(without_names, found)] == [*map(without_names, expected)], path
        pools = {
            (old.pool, new.pool)
            for before, after in zip(expected, found, strict=True)
            for one, other in zip(before.allocations, after.allocations, strict=True)
            for old, new in zip(one.results, other.results, strict=True)
        }
        assert len({old for old, _ in pools}) == len(pools) == len({new for _, new in pools}), path


UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
PRIVATE = (
    "secret-host",
    "secret-team",
    "secret-claim",
    "secret-pod",
    "secret-rack",
    "acme.example/secret",
    "5d5ba0d6",
    "0000:9c:00.0",
    "SN-1234",
    "secret-parameter",
    "secret-annotation",
)


def private_objects() -> list[dict[str, Any]]:
    device = gpu("gpu-0")
    device["attributes"] |= {
        "uuid": {"string": UUID},
        "resource.kubernetes.io/pciBusID": {"string": "0000:9c:00.0"},
        "serial": {"string": "SN-1234"},
        "host": {"string": "secret-host-b"},
    }
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"secret-host-{letter}",
                "labels": {
                    "kubernetes.io/hostname": f"secret-host-{letter}",
                    "kubernetes.io/arch": "amd64",
                    "acme.example/secret": "secret-rack",
                    "gpus": "8",
                },
                "annotations": {"note": "secret-annotation"},
            },
            "status": {"addresses": [{"address": "secret-host"}], "allocatable": {"example.com/fpga": "4"}},
        }
        for letter in "ab"
    ]
    wanted = {
        "requests": [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": "gpu.nvidia.com",
                    "selectors": [
                        {
                            "cel": {
                                "expression": f"device.attributes['gpu.nvidia.com'].uuid == '{UUID}' &&"
                                " device.attributes['gpu.nvidia.com'].host == \"secret-host-b\""
                            }
                        }
                    ],
                },
            }
        ],
        "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"key": "secret-parameter"}}}],
    }
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "secret-host-b", "device": "gpu-0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "secret-claim", "namespace": "secret-team", "annotations": {"note": "secret-annotation"}},
        "spec": {"devices": wanted},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "secret-pod", "uid": "1"}],
        },
    }
    return [slice_of("secret-host-b", device), *nodes, claim]


def test_nothing_private_is_left_and_what_is_compared_still_agrees(dryrun: DryRun, write: Write) -> None:
    file = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": private_objects()})
    code, plain, _ = dryrun("snapshot", "--slices", file)
    assert code == 0
    assert {"secret-pod", "secret-annotation"} & {word for word in PRIVATE if word in plain} == set()
    code, text, _ = dryrun("snapshot", "--slices", file, "--anonymise")
    assert code == 0
    assert [word for word in PRIVATE if word in text] == []
    slices, first, second, claim = yaml.safe_load_all(text)
    assert slices["spec"]["nodeName"] == slices["spec"]["pool"]["name"] == second["metadata"]["name"] == "node-2"
    assert second["metadata"]["labels"] == {
        "kubernetes.io/hostname": "node-2",
        "kubernetes.io/arch": "amd64",
        "label-1": "value-1",
        "label-2": "8",
    }
    assert first["status"]["allocatable"] == {"example.com/fpga": "1"}
    (request,) = claim["spec"]["devices"]["requests"]
    expression = request["exactly"]["selectors"][0]["cel"]["expression"]
    attributes = slices["spec"]["devices"][0]["attributes"]
    assert f"uuid == '{attributes['uuid']['string']}'" in expression
    assert f'host == "{attributes["host"]["string"]}"' in expression
    assert claim["metadata"] == {"name": "claim-1", "namespace": "namespace-1"}
    assert claim["status"]["allocation"]["devices"]["results"][0]["pool"] == "node-2"


def test_pseudonyms_sort_as_the_names_do() -> None:
    names = [f"n{number}" for number in range(120)]
    found = anonymise([*encoded(decode(slice_of(name, gpu("gpu-0"))) for name in names)])
    pseudonyms = [one["spec"]["pool"]["name"] for one in found]
    assert sorted(range(120), key=lambda at: names[at]) == sorted(range(120), key=lambda at: pseudonyms[at])


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_live_cluster_is_saved_and_asked_again(
    form: str, dryrun: DryRun, write: Write, client: ApiClient, kubeconfig: Path
) -> None:
    node = f"snapshot-{form}"
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    client.create(SLICES, slice_of(node, gpu("gpu-0"), gpu("gpu-1", f"the {form} one")))
    code, text, _ = dryrun("snapshot", "--kubeconfig", kubeconfig, "-o", form)
    assert code == 0
    documents = json.loads(text)["items"] if form == "json" else [*yaml.safe_load_all(text)]
    assert {"managedFields", "resourceVersion", "uid"}.isdisjoint(key for one in documents for key in one["metadata"])
    expression = f"device.attributes['gpu.nvidia.com'].productName == 'the {form} one'"
    code, out, _ = dryrun("cel", expression, "--slices", write(f"snapshot.{form}", text), "-o", "json")
    assert code == 0
    assert [one["device"] for one in json.loads(out)["devices"] if one["value"] and one["pool"] == node] == ["gpu-1"]


def test_without_a_flag_the_current_cluster_is_meant(
    dryrun: DryRun,
) -> None:
    code, out, err = dryrun("snapshot")
    assert (code, out) == (2, "")
    assert "no cluster is configured" in err


def test_claims_of_a_live_cluster_are_there_too(dryrun: DryRun, client: ApiClient, kubeconfig: Path) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "snapshot-claim", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    client.create(CLAIMS, claim, "default")
    _, text, _ = dryrun("snapshot", "--kubeconfig", kubeconfig, "-o", "json")
    claims = [one for one in json.loads(text)["items"] if one["kind"] == "ResourceClaim"]
    assert "snapshot-claim" in {one["metadata"]["name"] for one in claims}
