# SPDX-License-Identifier: Apache-2.0
"""Pods of ComputeDomains: the template that the controller would make, and why no node has a channel for them."""

import json
from typing import Any, Final

import pytest

from .conftest import DryRun, Write, gpu, slice_of

JSON = dict[str, Any]
DRIVER: Final = "compute-domain.nvidia.com"
UID: Final = "8a1f0c52-6d6c-4b7e-9f0e-0c9a7a1b2c3d"
OTHER: Final = "11111111-6d6c-4b7e-9f0e-0c9a7a1b2c3d"
CLIQUE: Final = "9f410827-489f-46fd-8203-51266ca08eb7.32766"
CLASS: Final = "compute-domain-default-channel.nvidia.com"
TAINT: Final = {"key": f"{DRIVER}/fabric", "value": "in-progress", "effect": "NoSchedule"}
DAEMON_CLASS: Final = "compute-domain-daemon.nvidia.com"


def device_class(name: str, kind: str) -> JSON:
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


CHANNEL_CLASS: Final = device_class(CLASS, "channel")
OTHER_CLASS: Final = device_class("other.example.com", "other")


def channel(node: str, domain: str = "", **more: object) -> JSON:
    """The slice with the channel of a node, which is in this domain."""
    attributes: JSON = {
        "type": {"string": "channel"},
        "id": {"int": 0},
        "gpu.nvidia.com/fabricClique": {"string": CLIQUE},
    }
    attributes |= {"domain": {"string": domain}} if domain else {}
    made = slice_of(node, {"name": "channel-0", "attributes": attributes, "allowMultipleAllocations": True, **more})
    made["metadata"]["name"] = f"{node}-channels"
    made["spec"]["driver"] = DRIVER
    return made


WITHOUT_CHANNELS: Final = channel("a")
WITHOUT_CHANNELS["spec"]["devices"] = []


def domain(uid: str = "", name: str = "train", **spec: object) -> JSON:
    channel = {"resourceClaimTemplate": {"name": "train-channel"}}
    metadata = {"name": name, "namespace": "team", **({"uid": uid} if uid else {})}
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": metadata,
        "spec": {"channel": channel, **spec},
    }


def workers(count: int = 1) -> JSON:
    pod = {
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "channel"}]}}],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": "train-channel"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "worker", "namespace": "team"},
        "spec": {"replicas": count, "template": {"spec": pod}},
    }


def template(uid: str, *, device_class: str = CLASS) -> JSON:
    selector = f"!('domain' in device.attributes['{DRIVER}']) || device.attributes['{DRIVER}'].domain == '{uid}'"
    exactly = {"deviceClassName": device_class, "selectors": [{"cel": {"expression": selector}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "train-channel", "namespace": "team"},
        "spec": {"spec": {"devices": {"requests": [{"name": "channel", "exactly": exactly}]}}},
    }


def stream(*objects: JSON) -> str:
    return "\n---\n".join(json.dumps(one) for one in objects)


@pytest.mark.parametrize(
    ("cluster", "documents", "nodes"),
    [
        ([channel("a")], [domain(), workers(3)], ["a", "a", "a"]),  # several pods share the channel of a node
        ([channel("a", OTHER), channel("b")], [domain(), workers(1)], ["b"]),
        ([channel("a", OTHER), channel("b")], [domain(OTHER), workers(1)], ["a"]),
        ([channel("a", OTHER), channel("b")], [domain(), template(OTHER), workers(1)], ["a"]),
        ([channel("a", OTHER), channel("b"), template(OTHER)], [domain(), workers(1)], ["a"]),
        ([channel("a", OTHER), channel("b"), domain(OTHER)], [workers(1)], ["a"]),
    ],
    ids=[
        "shared",
        "other domain",
        "own domain",
        "template in the files",
        "template in the cluster",
        "domain in the cluster",
    ],
)
def test_pods_of_a_domain_get_the_channel_of_a_node(
    cluster: list[JSON], documents: list[JSON], nodes: list[str], dryrun: DryRun, write: Write
) -> None:
    slices = write("cluster.yaml", stream(CHANNEL_CLASS, *cluster))
    code, out, _ = dryrun("--slices", slices, write("pods.yaml", stream(*documents)), "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert [one["node"] for one in found["demands"]] == nodes
    assert not any(one["problems"] for one in found["demands"])


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        (
            [CHANNEL_CLASS, channel("a", OTHER)],
            f"in another ComputeDomain, and a node is in one at a time found domain={OTHER}",
        ),
        (
            [CHANNEL_CLASS, channel("a", taints=[TAINT])],
            f"with taint {DRIVER}/fabric=in-progress:NoSchedule, which is not",
        ),
        (
            [CHANNEL_CLASS, slice_of("a", gpu("gpu-0"))],
            "no node has IMEX channels, or resources.computeDomains.enabled",
        ),
        (
            [CHANNEL_CLASS, WITHOUT_CHANNELS],
            f"the slices of driver {DRIVER} have no devices: no node has IMEX channels",
        ),
        (
            [OTHER_CLASS, slice_of("a", gpu("gpu-0"))],
            f"there is no DeviceClass {CLASS}: the driver's chart installs it with",
        ),
    ],
    ids=["other domain", "fabric", "no slices", "no channels", "no class"],
)
def test_why_no_node_takes_a_pod_of_a_domain(cluster: list[JSON], says: str, dryrun: DryRun, write: Write) -> None:
    slices = write("cluster.yaml", stream(*cluster))
    code, out, _ = dryrun("--slices", slices, write("pods.yaml", stream(domain(), workers())))
    assert code == (2 if "there is no DeviceClass" in says else 1)
    assert says in " ".join(out.split())
    assert "would fit after" not in out


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([domain(numNodess=2)], "pods.yaml:1:198: ComputeDomain team/train: spec.numNodess: unknown field"),
        ([domain(channel={"resourceClaimTemplate": {}})], "spec.channel.resourceClaimTemplate.name: is required"),
        ([domain(), domain(name="other")], "is also the template of"),
        ([domain(), template(UID, device_class="gpu.nvidia.com")], "which the controller does not replace"),
    ],
    ids=["unknown field", "no name", "two domains", "taken"],
)
def test_a_domain_that_cannot_have_its_template_is_refused(
    documents: list[JSON], says: str, dryrun: DryRun, write: Write
) -> None:
    code, _, err = dryrun("--built-in", write("pods.yaml", stream(*documents, workers())))
    assert code == 2
    assert says in err


def test_a_new_node_like_one_of_a_domain_is_in_none(dryrun: DryRun, write: Write) -> None:
    cluster = write("cluster.yaml", stream(CHANNEL_CLASS, channel("a", OTHER)))
    code, made, _ = dryrun("node-template", "a", "--slices", cluster)
    assert code == 0
    assert CLIQUE in made
    assert OTHER not in made


@pytest.mark.parametrize(("parameters", "problems"), [({"domainID": UID}, 0), ({"domainID": UID, "mode": "All"}, 1)])
def test_a_configuration_that_no_node_accepts_is_named(
    parameters: JSON, problems: int, dryrun: DryRun, write: Write
) -> None:
    kind = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig"}
    made = template(UID)
    made["spec"]["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": kind | parameters}}]
    slices = write("cluster.yaml", stream(CHANNEL_CLASS, channel("a")))
    _, out, _ = dryrun("--slices", slices, write("pods.yaml", stream(made, workers())), "-o", "json")
    (demand,) = json.loads(out)["demands"]
    assert len(demand["problems"]) == problems
    assert all("parameters.mode: unknown field" in one for one in demand["problems"])


@pytest.mark.parametrize(("classes", "starts"), [([device_class(DAEMON_CLASS, "daemon")], False), ([], True)])
def test_pods_of_two_domains_start_on_one_node_only_with_daemons_of_the_host(
    classes: list[JSON], starts: bool, dryrun: DryRun, write: Write
) -> None:
    """The scheduler would place them: the attribute appears when the first pod's claim is prepared."""
    other, worker = domain(name="other"), workers()
    other["spec"]["channel"]["resourceClaimTemplate"]["name"] = "other-channel"
    worker["metadata"]["name"] = "other"
    worker["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "other-channel"
    slices = write("cluster.yaml", stream(CHANNEL_CLASS, *classes, channel("a")))
    pods = write("pods.yaml", stream(domain(), other, workers(2), worker))
    code, out, _ = dryrun("--slices", slices, pods, "-o", "json")
    *first, last = json.loads(out)["demands"]
    assert code == (0 if starts else 1)
    assert [one["problems"] for one in first] == [[], []]
    said = "claim team/worker-0-channel of another ComputeDomain has the channel of node a"
    assert starts or said in last["problems"][0]


def test_an_anonymous_snapshot_still_tells_which_domain_a_node_is_in(dryrun: DryRun, write: Write) -> None:
    cluster = write("cluster.yaml", stream(CHANNEL_CLASS, channel("a", OTHER), channel("b", UID), template(UID)))
    code, saved, _ = dryrun("snapshot", "--slices", cluster, "--anonymise", "-o", "json")
    assert code == 0
    assert UID not in saved
    assert OTHER not in saved
    assert CLIQUE not in saved
    (kept,) = (one for one in json.loads(saved)["items"] if one["kind"] == "ResourceClaimTemplate")
    pod = workers()
    pod["metadata"]["namespace"] = kept["metadata"]["namespace"]
    pod["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = kept["metadata"]["name"]
    code, out, _ = dryrun("--slices", write("saved.json", saved), write("pod.yaml", pod), "-o", "json")
    assert code == 0
    assert [one["node"] for one in json.loads(out)["demands"]] == ["node-2"]
