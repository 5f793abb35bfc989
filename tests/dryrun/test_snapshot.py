# SPDX-License-Identifier: Apache-2.0
"""A snapshot decides as the cluster does, whether or not its names were replaced."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.pseudonyms import anonymise
from dra_driver.dryrun.reduction import reduced_object
from dra_driver.dryrun.snapshot import encoded
from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import NODES, PODS
from dra_driver.kube.resource.codec import GROUP, Decoded, decode, encode_allocation
from dra_driver.scheduler.allocator import Cluster, Features, NodeOutcome, allocate_all
from dra_driver.scheduler.pods import READ, Attempt, PodDecoder, Quotas, Reader, admit_pod
from tests.golden.allocation.scenario import Scenario, load
from tests.golden.scheduling.scenario import load as load_pod_scenario
from tests.golden.stored import categories, category_scenarios
from tests.support.apiserver import CLAIMS, SLICES, embedded

from .conftest import DryRun, Write, gpu, install_classes, slice_of
from .test_whole_pod import claim, node, pod, running

FOLDER = Path(__file__).parents[1] / "golden" / "allocation"
POD_SCENARIOS = FOLDER.with_name("scheduling")


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


def test_conditions_of_devices_that_must_be_bound_are_saved() -> None:
    key = {"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}
    waits = {"request": "gpu", **key, "bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    conditions = [{"type": "failed", "status": "True"}, {"type": "ready", "status": "False"}]
    value = claim("wanted")
    value["status"] = {
        "allocation": {"devices": {"results": [waits]}},
        "devices": [{**key, "conditions": conditions, "data": {"serial": "private"}}],
    }
    (saved,) = encoded([decode(value)])
    assert saved["status"]["devices"] == [{**key, "conditions": [{"type": "failed", "status": "True"}]}]
    assert decode(saved) == decode(value)


@pytest.mark.parametrize("category", categories(FOLDER))
def test_every_decision_on_a_snapshot_is_the_clusters(category: str) -> None:
    for stored in category_scenarios(FOLDER, category):
        scenario: Scenario = load(stored)
        objects = objects_of(scenario.cluster)
        original = allocate_all(
            scenario.cluster, scenario.cluster.pending, scenario.features, share_ids=lambda: "a-share"
        )
        expected = [original[node.name] for node in scenario.cluster.nodes]
        documents = list(encoded(objects))
        assert [*map(answer, decided(documents, scenario.features))] == [*map(answer, expected)], stored
        nameless = anonymise(documents)
        assert anonymise(nameless) == nameless, stored
        found = decided(nameless, scenario.features)
        assert [*map(without_names, found)] == [*map(without_names, expected)], stored
        pools = {
            (old.pool, new.pool)
            for before, after in zip(expected, found, strict=True)
            for one, other in zip(before.allocations, after.allocations, strict=True)
            for old, new in zip(one.results, other.results, strict=True)
        }
        assert len({old for old, _ in pools}) == len(pools) == len({new for _, new in pools}), stored


def answer_about_pod(documents: Sequence[dict[str, Any]], asked: dict[str, Any]) -> tuple[Attempt, list[object]]:
    """The attempt, and what it answers but for names: each node's refusal, what preemption does, and the quotas."""
    reader = Reader()
    for one in documents:
        reader.add(one)
    policies, snapshot = reader.policies(), reader.snapshot()
    admitted = admit_pod(asked, policies)
    attempt = Attempt(PodDecoder().decode(admitted.pod), snapshot)
    refusals = [one and (one.plugin, one.code, len(one.reasons)) for one in attempt.refusals.values()]
    preemption = attempt.after.preemption if attempt.after is not None else None
    removed = [len(one.pods) for one in preemption.candidates.values()] if preemption is not None else []
    quotas = Quotas(snapshot, reader.templates).decide(attempt.pod, policies.quotas)
    refused = attempt.refusal and attempt.refusal.plugin
    return attempt, [bool(admitted.forbidden), refused, len(attempt.gates), refusals, removed, len(quotas.messages)]


@pytest.mark.parametrize("category", categories(POD_SCENARIOS))
def test_every_verdict_on_a_pod_is_the_cluster_s(category: str) -> None:
    for stored in category_scenarios(POD_SCENARIOS, category):
        scenario = load_pod_scenario(stored)
        if scenario.create is None or scenario.create[0] != "Pod":
            continue
        own = [one for one in scenario.documents if names_of(one) == scenario.create]
        rest = [one for one in scenario.documents if one not in own]
        known = [one for one in rest if one["apiVersion"].startswith(GROUP) and one["kind"] != "ResourceClaimTemplate"]
        kept = [*encoded(map(decode, known)), *(reduced_object(one) for one in rest if one not in known)]
        attempt, expected = answer_about_pod(rest, own[0])
        reduced, found = answer_about_pod(kept, reduced_object(own[0]))
        assert (reduced.event, reduced.refusals, found) == (attempt.event, attempt.refusals, expected), stored
        nameless = anonymise([*kept, reduced_object(own[0])])
        assert anonymise(nameless) == nameless, stored
        assert answer_about_pod(nameless[:-1], nameless[-1])[1] == expected, stored


def names_of(document: dict[str, Any]) -> tuple[str, str, str]:
    meta = document["metadata"]
    return document["kind"], meta.get("namespace", "default"), meta["name"]


UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
PRIVATE = (
    "secret",
    "acme.example",
    "10.11.12.13",
    "5d5ba0d6",
    "0000:9c:00.0",
    "SN-1234",
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
    return [slice_of("secret-host-b", device), *nodes, claim, *private_pods()]


def private_pods() -> list[dict[str, Any]]:
    """A pod whose every field has something private, and what it refers to."""
    named = {"namespace": "secret-team", "annotations": {"note": "secret-annotation"}}
    labels = {"acme.example/secret": "secret-app"}
    selector = {
        "matchLabels": labels,
        "matchExpressions": [{"key": "acme.example/secret", "operator": "In", "values": ["secret-app"]}],
    }
    term = {"topologyKey": "acme.example/secret", "labelSelector": selector, "namespaces": ["secret-team"]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    node_term = {"matchExpressions": selector["matchExpressions"]}
    spec = {
        "nodeName": "secret-host-a",
        "nodeSelector": labels,
        "serviceAccountName": "secret-account",
        "priorityClassName": "secret-class",
        "runtimeClassName": "secret-runtime",
        "schedulerName": "secret-scheduler",
        "schedulingGroup": {"podGroupName": "secret-group"},
        "schedulingGates": [{"name": "acme.example/secret-gate"}],
        "tolerations": [{"key": "acme.example/secret", "value": "secret-taint"}],
        "topologySpreadConstraints": [{**term, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
        "affinity": {
            "podAffinity": {required: [term]},
            "nodeAffinity": {required: {"nodeSelectorTerms": [node_term]}},
        },
        "resourceClaims": [{"name": "secret-slot", "resourceClaimName": "secret-claim"}],
        "containers": [
            {
                "name": "secret-container",
                "image": "secret-image",
                "env": [{"name": "TOKEN", "value": "secret-token"}],
                "ports": [{"name": "secret-port", "containerPort": 1, "hostPort": 1, "hostIP": "10.11.12.13"}],
                "resources": {"claims": [{"name": "secret-slot"}]},
            }
        ],
        "volumes": [
            {"name": "secret-volume", "persistentVolumeClaim": {"claimName": "secret-volume-claim"}},
            {"name": "disk", "gcePersistentDisk": {"pdName": "secret-disk"}},
            {"name": "config", "configMap": {"name": "secret-map"}},
        ],
    }
    policy = {
        "schedulingPolicy": {"gang": {"minCount": 1}},
        "schedulingConstraints": {"topology": [{"key": "acme.example/secret"}]},
        "resourceClaims": [
            {"name": "secret-slot", "resourceClaimName": "secret-claim"},
            {"name": "secret-other", "resourceClaimTemplateName": "secret-template"},
        ],
    }
    controller = {"apiGroup": "batch", "kind": "Job", "name": "secret-job"}
    workload = {"controllerRef": controller, "podGroupTemplates": [{"name": "secret-role", **policy}]}
    pod = {"metadata": {**named, "name": "secret-pod", "labels": labels, "uid": "secret-uid"}, "spec": spec}
    volume = {
        "metadata": {"name": "secret-volume", "labels": labels},
        "spec": {
            "claimRef": {"namespace": "secret-team", "name": "secret-volume-claim", "uid": "secret-uid"},
            "csi": {"driver": "acme.example/secret-driver", "volumeHandle": "secret-handle"},
            "storageClassName": "secret-storage",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [node_term]}},
        },
    }
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("v1", "Pod", pod),
        ("v1", "Namespace", {"metadata": {"name": "secret-team", "labels": labels}}),
        ("v1", "PersistentVolume", volume),
        (
            "v1",
            "PersistentVolumeClaim",
            {
                "metadata": {**named, "name": "secret-volume-claim"},
                "spec": {"volumeName": "secret-volume", "storageClassName": "secret-storage", "selector": selector},
            },
        ),
        (
            "v1",
            "ResourceQuota",
            {
                "metadata": {**named, "name": "secret-quota"},
                "spec": {
                    "hard": {"pods": "5", "secret-storage.storageclass.storage.k8s.io/requests.storage": "1"},
                    "scopeSelector": {
                        "matchExpressions": [
                            {"scopeName": "PriorityClass", "operator": "In", "values": ["secret-class"]}
                        ]
                    },
                },
            },
        ),
        ("v1", "LimitRange", {"metadata": {**named, "name": "secret-limits"}, "spec": {"limits": []}}),
        (
            "policy/v1",
            "PodDisruptionBudget",
            {
                "metadata": {**named, "name": "secret-budget"},
                "spec": {"selector": selector},
                "status": {"disruptedPods": {"secret-pod": "2026-11-22T10:00:00Z"}},
            },
        ),
        (
            "scheduling.k8s.io/v1beta1",
            "PodGroup",
            {
                "metadata": {**named, "name": "secret-group"},
                "spec": {**policy, "parentCompositePodGroupName": "secret-parent", "workloadRef": {"name": "secret"}},
            },
        ),
        ("scheduling.k8s.io/v1beta1", "Workload", {"metadata": {**named, "name": "secret-load"}, "spec": workload}),
        ("scheduling.k8s.io/v1", "PriorityClass", {"metadata": {"name": "secret-class"}, "value": 5}),
        (
            "node.k8s.io/v1",
            "RuntimeClass",
            {
                "metadata": {"name": "secret-runtime"},
                "handler": "secret-handler",
                "scheduling": {"nodeSelector": labels},
            },
        ),
        (
            "storage.k8s.io/v1",
            "StorageClass",
            {
                "metadata": {"name": "secret-storage"},
                "provisioner": "acme.example/secret-driver",
                "parameters": {"key": "secret-parameter"},
                "allowedTopologies": [{"matchLabelExpressions": selector["matchExpressions"]}],
            },
        ),
        (
            "storage.k8s.io/v1",
            "CSINode",
            {
                "metadata": {"name": "secret-host-a"},
                "spec": {"drivers": [{"name": "acme.example/secret-driver", "nodeID": "secret-id"}]},
            },
        ),
        ("storage.k8s.io/v1", "CSIDriver", {"metadata": {"name": "acme.example/secret-driver"}}),
        (
            "storage.k8s.io/v1",
            "CSIStorageCapacity",
            {
                "metadata": {"name": "secret-capacity", "namespace": "secret-team"},
                "storageClassName": "secret-storage",
                "nodeTopology": selector,
            },
        ),
    ]
    return [{"apiVersion": version, "kind": kind, **one} for version, kind, one in kinds]


def test_nothing_private_is_left_and_what_is_compared_still_agrees(dryrun: DryRun, write: Write) -> None:
    file = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": private_objects()})
    code, plain, _ = dryrun("snapshot", "--slices", file)
    assert code == 0
    left_out = {"annotation", "account", "token", "image", "map", "handler", "id"}
    assert [word for word in left_out if f"secret-{word}\n" in plain] == []
    code, text, _ = dryrun("snapshot", "--slices", file, "--anonymise")
    assert code == 0
    assert [word for word in PRIVATE if word in text] == []
    slices, claim, *around = yaml.load_all(text, yaml.CSafeLoader)
    first, second = (one for one in around if one["kind"] == "Node")
    assert {one["kind"] for one in around} >= {"PodGroup", "Workload", *(kind for _, kind in READ)}
    assert slices["spec"]["nodeName"] == slices["spec"]["pool"]["name"] == second["metadata"]["name"] == "node-2"
    assert second["metadata"]["labels"] == {
        "kubernetes.io/hostname": "node-2",
        "kubernetes.io/arch": "amd64",
        "label-1": "value-2",
        "label-2": "8",
    }
    assert first["status"]["allocatable"] == {"example.com/fpga": "4"}
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


@pytest.mark.cluster
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_live_cluster_is_saved_and_asked_again(
    form: str, dryrun: DryRun, write: Write, client: ApiClient, kubeconfig: Path
) -> None:
    node = f"snapshot-{form}"
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    client.create(SLICES, slice_of(node, gpu("gpu-0"), gpu("gpu-1", f"the {form} one")))
    code, text, _ = dryrun("snapshot", "--kubeconfig", kubeconfig, "-o", form)
    assert code == 0
    documents = json.loads(text)["items"] if form == "json" else [*yaml.load_all(text, yaml.CSafeLoader)]
    fields = {key for one in documents for key in one.get("metadata", {})}
    assert {"managedFields", "resourceVersion", "selfLink"}.isdisjoint(fields)
    expression = f"device.attributes['gpu.nvidia.com'].productName == 'the {form} one'"
    code, out, _ = dryrun("cel", expression, "--slices", write(f"snapshot.{form}", text), "-o", "json")
    assert code == 0
    assert [one["device"] for one in json.loads(out)["devices"] if one["value"] and one["pool"] == node] == ["gpu-1"]


def crowded() -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Two nodes, one of which has no CPU left and the other no GPU, and a pod that waits for both."""
    yield NODES, node("full-of-pods")
    yield NODES, node("full-of-claims", taints=[{"key": "dedicated", "value": "team", "effect": "NoSchedule"}])
    for name in ("full-of-pods", "full-of-claims"):
        yield SLICES, slice_of(name, gpu("gpu-0"))
    yield PODS, running("busy", "full-of-pods", "7500m")
    yield CLAIMS, claim("mine")
    yield PODS, pod("waiting", "2", "mine", tolerations=[{"key": "dedicated", "operator": "Exists"}])
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "full-of-claims", "device": "gpu-0"}
    yield CLAIMS, claim("held") | {"status": {"allocation": {"devices": {"results": [result]}}}}


@pytest.mark.cluster
def test_a_verdict_from_a_snapshot_is_that_from_the_live_cluster(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    """Also of a pod that waits there, with the scheduler's text; and without names but for names."""
    with embedded(tmp_path) as (_, kubeconfig, client):
        install_classes(client)
        for kind, value in crowded():
            made = client.create(kind, value, "default" if kind.namespaced else "")
            if "status" in value:
                client.update(kind, {**made, "status": value["status"]}, subresource="status")
        live = ("--kubeconfig", kubeconfig)
        saved = write("saved.json", dryrun("snapshot", *live, "-o", "json")[1])
        nameless = write("nameless.json", dryrun("snapshot", *live, "-o", "json", "--anonymise")[1])
        small = write("small.json", dryrun("snapshot", *live, "-o", "json", "--devices-only")[1])
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]
        asked = ["pod/waiting", write("pod.json", pod("without-volume", "1", volumes=volumes))]
        answers = [verdict(dryrun(*live, one, "-o", "json")) for one in asked]
    assert answers == [verdict(dryrun("--slices", saved, one, "-o", "json")) for one in asked]
    waiting, without_volume = answers
    assert waiting["event"].startswith("0/2 nodes are available: 1 Insufficient cpu, 1 cannot allocate all claims.")
    assert 'persistentvolumeclaim "missing" not found' in without_volume["event"]
    (namespace,) = {one["metadata"]["namespace"] for one in json.loads(nameless.read_text())["items"] if is_pod(one)}
    pending = verdict(dryrun("--slices", nameless, "--all-pending", "-n", namespace, "-o", "json"))
    assert pending["event"] == waiting["event"]
    assert pending["name"] != waiting["name"]
    assert {one["kind"] for one in json.loads(small.read_text())["items"]} == {
        "ResourceSlice",
        "DeviceClass",
        "ResourceClaim",
        "Node",
    }


def is_pod(document: dict[str, Any]) -> bool:
    return bool(document["kind"] == "Pod")


def verdict(result: tuple[int, str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result[1])["demands"][0]
    return found


def test_without_a_flag_the_current_cluster_is_meant(
    dryrun: DryRun,
) -> None:
    code, out, err = dryrun("snapshot")
    assert (code, out) == (2, "")
    assert "no cluster is configured" in err


@pytest.mark.cluster
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


def test_namespaces_that_every_cluster_has_keep_their_names(dryrun: DryRun, write: Write) -> None:
    names = ["acme", "default", "ex", "kube-public", "kube-system", "kubeflow", "team"]
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    file = write(
        "cluster.json", {"apiVersion": "v1", "kind": "List", "items": [*namespaces, slice_of("n", gpu("gpu-0"))]}
    )
    code, text, _ = dryrun("snapshot", "--slices", file, "--anonymise")
    assert code == 0
    found = [one["metadata"]["name"] for one in yaml.load_all(text, yaml.CSafeLoader) if one["kind"] == "Namespace"]
    assert found[1:2] + found[3:5] == ["default", "kube-public", "kube-system"]
    assert not {"acme", "ex", "kubeflow", "team"} & set(found)
    assert sorted(found) == found


def test_a_pod_is_admitted_on_an_anonymous_snapshot(dryrun: DryRun, write: Write) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    items = [namespace, node("n", cpu="4"), slice_of("n", gpu("gpu-0"))]
    file = write("cluster.json", {"apiVersion": "v1", "kind": "List", "items": items})
    _, text, _ = dryrun("snapshot", "--slices", file, "--anonymise")
    asked = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    code, out, _ = dryrun("--slices", write("anonymous.yaml", text), write("pod.json", asked))
    assert code == 0, out
