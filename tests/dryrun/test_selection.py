# SPDX-License-Identifier: Apache-2.0
"""Pods that select labels of nodes whose labels are not all known."""

import json
from typing import Any

import pytest

from dra_driver.dryrun.selection import OpenLabels, assumption_texts
from dra_driver.kube.resource import Node, ObjectMeta
from dra_driver.scheduler.pods import PodDecoder
from dra_driver.scheduler.pods.objects import Pod

from .conftest import DryRun, Write, gpu, slice_of

JSON = dict[str, Any]
NODE = Node(ObjectMeta(name="n", labels={"kubernetes.io/arch": "amd64", "nvidia.com/gpu.product": "NVIDIA-L4"}))
OPEN = OpenLabels(frozenset({"n"}))
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity(*terms: JSON) -> JSON:
    """A required node affinity with these alternative terms."""
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def wanting(*requirements: tuple[str, str, list[str]]) -> JSON:
    """A term with these requirements on labels."""
    found = [{"key": key, "operator": operator, "values": values} for key, operator, values in requirements]
    return {"matchExpressions": found}


def decoded(spec: JSON) -> Pod:
    return PodDecoder().decode({"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [], **spec}})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ()),
        ({"nodeSelector": {"kubernetes.io/arch": "amd64"}}, ()),
        ({"nodeSelector": {"kubernetes.io/arch": "arm64"}}, None),
        ({"nodeSelector": {"pool": "a"}}, ("the node has pool=a",)),
        ({"nodeSelector": {"nvidia.com/gpu.clique": "a.1"}}, None),
        ({"nodeSelector": {"nvidia.com/gpu.present": "true"}}, ("the node has nvidia.com/gpu.present=true",)),
        (affinity(wanting(("pool", "In", ["a", "b"]))), ("the node has pool=a or pool=b",)),
        (affinity(wanting(("pool", "NotIn", ["a"]))), ("the node does not have pool=a",)),
        (affinity(wanting(("pool", "Exists", []))), ("the node has the label pool",)),
        (affinity(wanting(("pool", "DoesNotExist", []))), ("the node does not have the label pool",)),
        (affinity(wanting(("size", "Gt", ["5"]))), ("the node has a number greater than 5 in the label size",)),
        (affinity(wanting(("nvidia.com/gpu.product", "NotIn", ["NVIDIA-L4"]))), None),
        (affinity(wanting(("nvidia.com/gpu.product", "Exists", []))), ()),
        (affinity(wanting(("nvidia.com/mig-1g.5gb.count", "DoesNotExist", []))), ()),
        (affinity(wanting(("pool", "In", ["a"])), wanting(("kubernetes.io/arch", "Exists", []))), ()),
        (affinity(wanting(("pool", "In", ["a"]), ("pool", "NotIn", ["a"]))), None),
        (affinity(wanting(("size", "Gt", ["5"]), ("size", "Lt", ["6"]))), None),
        ({"nodeSelector": {"pool": "a"}, **affinity(wanting(("pool", "In", ["b"])))}, None),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}), None),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), ()),
    ],
)
def test_unknown_labels_are_assumed_and_known_labels_decide(spec: JSON, expected: tuple[str, ...] | None) -> None:
    needs = OPEN.needs(decoded(spec), NODE)
    assert (None if needs is None else assumption_texts(needs)) == expected


@pytest.mark.parametrize("spec", [{"nodeSelector": {"pool": "a"}}, affinity(wanting(("pool", "Exists", [])))])
def test_a_node_whose_labels_are_known_lacks_other_labels(spec: JSON) -> None:
    assert OpenLabels().needs(decoded(spec), NODE) is None


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        (("pool", "In", ["a"]), ("pool", "In", ["b"]), False),
        (("pool", "In", ["a", "b"]), ("pool", "In", ["b", "c"]), True),
        (("pool", "In", ["a"]), ("pool", "DoesNotExist", []), False),
        (("pool", "NotIn", ["a"]), ("pool", "In", ["a"]), False),
        (("pool", "NotIn", ["a"]), ("pool", "Exists", []), True),
        (("size", "Gt", ["5"]), ("size", "Lt", ["8"]), True),
        (("size", "Gt", ["5"]), ("size", "Lt", ["5"]), False),
        (("size", "Gt", ["5"]), ("size", "NotIn", ["6", "7"]), True),
        (("pool", "In", ["a"]), ("zone", "In", ["b"]), True),
    ],
)
def test_pods_on_one_node_agree_on_its_labels(
    first: tuple[str, str, list[str]], second: tuple[str, str, list[str]], agree: bool
) -> None:
    needs = OPEN.needs(decoded(affinity(wanting(first))), NODE)
    assert needs is not None
    after = OPEN.after("n", needs)
    more = after.needs(decoded(affinity(wanting(second))), NODE)
    assert (more is not None) == agree
    if more is not None:
        labelled = after.labelled(NODE, more)
        assert OpenLabels().needs(decoded(affinity(wanting(first))), labelled) == ()
        assert OpenLabels().needs(decoded(affinity(wanting(second))), labelled) == ()


def pod(name: str, **spec: Any) -> JSON:
    """A pod that requests a GPU."""
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [container], **spec},
    }


def cluster(*nodes: JSON) -> JSON:
    """A cluster with these nodes and the class that serves nvidia.com/gpu."""
    gpus = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {
            "selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'gpu'"}}],
            "extendedResourceName": "nvidia.com/gpu",
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [*nodes, gpus]}


def node(name: str, **labels: str) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }


GKE = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
SELECTING = [
    {"nodeSelector": GKE},
    affinity(wanting(("cloud.google.com/gke-accelerator", "In", ["nvidia-tesla-t4"]))),
]


@pytest.mark.parametrize("spec", SELECTING, ids=["selector", "affinity"])
@pytest.mark.parametrize(
    "place",
    [
        ["--built-in"],
        ["--with-node", "t4x4"],
        ["--slices", "SLICES"],
        ["--slices", "CLUSTER", "--with-node", "t4x4"],
        ["--slices", "CLUSTER", "--with-node", "t4x4", "--devices-only"],
    ],
    ids=" ".join,
)
def test_a_label_of_a_cloud_is_assumed_unless_labels_are_strict(
    spec: JSON, place: list[str], dryrun: DryRun, write: Write
) -> None:
    files = {
        "SLICES": write("slices.json", slice_of("node-b", gpu("gpu-0"))),
        "CLUSTER": write("cluster.json", cluster(node("node-a"), slice_of("node-a"))),
    }
    given = [str(files.get(one, one)) for one in place]
    asked = write("pod.json", pod("p", **spec))
    code, out, _ = dryrun(*given, asked)
    assert code == 0, out
    assert "assuming the node has cloud.google.com/gke-accelerator=nvidia-tesla-t4" in out
    assert dryrun(*given, "--strict-labels", asked)[0] == 1
    code, out, _ = dryrun(
        *given, "--strict-labels", "--node-labels", "cloud.google.com/gke-accelerator=nvidia-tesla-t4", asked
    )
    assert code == 0, out
    assert "assuming" not in out
    code, out, _ = dryrun(*given, "--node-labels", "cloud.google.com/gke-accelerator=nvidia-l4", asked)
    assert code == 1, out


@pytest.mark.parametrize("spec", SELECTING, ids=["selector", "affinity"])
@pytest.mark.parametrize("flags", [[], ["--devices-only"]])
def test_a_node_of_a_cluster_has_the_labels_that_it_has(
    spec: JSON, flags: list[str], dryrun: DryRun, write: Write
) -> None:
    slices = write("cluster.json", cluster(node("node-a"), slice_of("node-a", gpu("gpu-0"))))
    code, out, _ = dryrun("--slices", slices, *flags, write("pod.json", pod("p", **spec)))
    assert code == 1
    assert "assuming" not in out


@pytest.mark.parametrize("place", [["--with-node", "t4x4"], ["--slices", "CLUSTER", "--with-node", "t4x4"]])
def test_pods_that_need_different_values_of_a_label_are_not_on_one_node(
    place: list[str], dryrun: DryRun, write: Write
) -> None:
    files = {"CLUSTER": write("cluster.json", cluster(node("node-a")))}
    pods = [pod(f"p{value}", nodeSelector={"pool": value}) for value in ("x", "y")]
    asked = write("pods.json", {"apiVersion": "v1", "kind": "List", "items": pods})
    given = [str(files.get(one, one)) for one in place]
    code, out, _ = dryrun(*given, "-o", "json", asked)
    assert code == 1
    assert [one["fits"] for one in json.loads(out)["demands"]] == [True, False]
    code, out, _ = dryrun(*(one.replace("t4x4", "t4x4=2") for one in given), "-o", "json", asked)
    assert code == 0
    found = json.loads(out)["demands"]
    assert [one["node"] for one in found] == ["new-t4x4-1", "new-t4x4-2"]
    assert [one["assumptions"] for one in found] == [["the node has pool=x"], ["the node has pool=y"]]


def test_a_node_of_which_nothing_has_to_be_assumed_comes_first(dryrun: DryRun, write: Write) -> None:
    slices = write("cluster.json", cluster(node("z", pool="x"), slice_of("z", gpu("gpu-0"))))
    asked = write("pod.json", pod("p", nodeSelector={"pool": "x"}))
    _, out, _ = dryrun("--slices", slices, "--with-node", "t4x4", "-o", "json", asked)
    (found,) = json.loads(out)["demands"]
    assert found["fittingNodes"] == ["z", "new-t4x4-1"]
    assert found["assumptions"] == []


def test_a_new_node_is_assumed_to_be_in_a_zone_of_the_cluster(dryrun: DryRun, write: Write) -> None:
    zone = "topology.kubernetes.io/zone"
    spread = {
        "maxSkew": 1,
        "topologyKey": zone,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
    slices = write("cluster.json", cluster(node("node-a", **{zone: "zone-a"})))
    asked = write("pod.json", pod("p", topologySpreadConstraints=[spread]))
    code, out, _ = dryrun("--slices", slices, "--with-node", "t4x4", asked)
    assert code == 0, out
    assert f"assuming the node has {zone}=zone-a" in out
    assert dryrun("--slices", slices, "--with-node", "t4x4", "--strict-labels", asked)[0] == 1


def test_the_copies_of_a_pod_assume_the_same(dryrun: DryRun, write: Write) -> None:
    asked = write("pod.json", pod("p", nodeSelector={"pool": "x"}))
    slices = write("cluster.json", cluster(node("node-a")))
    for place in (["--with-node", "t4x4"], ["--slices", str(slices), "--with-node", "t4x4"]):
        _, out, _ = dryrun(*place, "--replicas", "max", "-o", "json", asked)
        assert json.loads(out)["replicas"]["now"]["copies"] == 4, out


def test_a_daemon_set_has_a_pod_on_each_node_that_may_have_its_labels(dryrun: DryRun, write: Write) -> None:
    spec = {**pod("p")["spec"], "nodeSelector": {"pool": "x"}}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": spec}
    wanted = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    value = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": wanted}
    code, out, _ = dryrun("--with-node", "t4x4=2", "-o", "json", write("set.json", value))
    assert code == 0, out
    assert [one["assumptions"] for one in json.loads(out)["demands"]] == [["the node has pool=x"]] * 2


@pytest.mark.parametrize("text", ["pool", "=x", "a b=c", "pool=x y", "pool=x,"])
def test_labels_that_kubernetes_does_not_take_are_refused(text: str, dryrun: DryRun, write: Write) -> None:
    code, _, err = dryrun("--built-in", "--node-labels", text, write("pod.json", pod("p")))
    assert code == 2
    assert "is not a label of the form KEY=VALUE" in err


def test_labels_need_nodes_that_they_can_be_given_to(dryrun: DryRun, write: Write) -> None:
    slices = write("cluster.json", cluster(node("node-a")))
    code, _, err = dryrun("--slices", slices, "--node-labels", "a=b", write("pod.json", pod("p")))
    assert code == 2
    assert "--node-labels is for built-in nodes and for those of --with-node, and there are none" in err
