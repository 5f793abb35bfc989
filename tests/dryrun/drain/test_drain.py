# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun drain`: the rules that it prints, the pods that it names, and the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.releases import RELEASES, minor_of
from tests.dryrun.conftest import DryRun, Write

from .world import JSON, claim, device_class, nodes, pod, running, save

NODE, OTHER = "new-h100x8-1", "new-h100x8-2"
TOLERATING = {"key": "gpu.nvidia.com/drain", "operator": "Exists", "effect": "NoExecute"}


def two_nodes(*objects: JSON) -> list[JSON]:
    return [*nodes("h100x8", 2), device_class(), *objects]


def asked(dryrun: DryRun, cluster: Path, *arguments: object) -> tuple[int, Any]:
    """The exit status, and the answer in JSON."""
    code, out, _ = dryrun("drain", *arguments, "--slices", cluster, "-o", "json")
    return code, json.loads(out)


def selectors(out: str) -> list[JSON]:
    return [rule["spec"]["deviceSelector"] for rule in yaml.load_all(out, yaml.CSafeLoader)]


def test_rule_of_a_gpu_goes_to_standard_output_alone(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *two_nodes(*running("train", NODE, "gpu-5")))
    code, out, err = dryrun("drain", f"{NODE}/5", "--slices", cluster)
    assert code == 0
    assert yaml.load(out, yaml.CSafeLoader) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": f"drain-{NODE}-gpu-5"},
        "spec": {
            "taint": {"key": "gpu.nvidia.com/drain", "effect": "NoExecute"},
            "deviceSelector": {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-5"},
        },
    }
    assert "evicted: 1 pod" in err
    assert "team/train" in err


@pytest.mark.parametrize("gpu", ["gpu-5", "0000:cb:00.0", "uuid"])
def test_gpu_is_named_by_name_address_or_uuid(gpu: str, dryrun: DryRun, tmp_path: Path) -> None:
    objects = two_nodes()
    devices = next(one for one in objects if one["kind"] == "ResourceSlice")["spec"]["devices"]
    attributes = devices[5]["attributes"]
    names = {"uuid": attributes["uuid"]["string"], "gpu-5": "gpu-5"}
    name = names.get(gpu, attributes["resource.kubernetes.io/pciBusID"]["string"])
    _, out, _ = dryrun("drain", f"{NODE}/{name}", "--slices", save(tmp_path, *objects))
    assert [selector["device"] for selector in selectors(out)] == ["gpu-5"]


def test_all_forms_of_a_gpu_get_the_taint(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8-mig", 1))
    _, out, _ = dryrun("drain", "new-h100x8-mig-1/3", "--slices", cluster)
    devices = [selector["device"] for selector in selectors(out)]
    assert len(devices) == 25
    assert all(device.startswith("gpu-3-mig-") for device in devices)


def test_mig_device_can_be_drained(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8-mig", 1))
    _, out, _ = dryrun("drain", "new-h100x8-mig-1/gpu-3-mig-1g10gb-19-2", "--slices", cluster)
    assert [selector["device"] for selector in selectors(out)] == ["gpu-3-mig-1g10gb-19-2"]


@pytest.mark.parametrize("target", [NODE, "H100", "NVIDIA H100*", "nvidia-h100-80gb-hbm3"])
def test_whole_pools_get_one_rule(target: str, dryrun: DryRun, tmp_path: Path) -> None:
    _, out, _ = dryrun("drain", target, "--slices", save(tmp_path, *two_nodes()))
    pools = [NODE] if target == NODE else [NODE, OTHER]
    assert selectors(out) == [{"driver": "gpu.nvidia.com", "pool": pool} for pool in pools]


def test_conditions_restrict_the_targets(dryrun: DryRun, tmp_path: Path) -> None:
    objects = two_nodes()
    first, second = (one["spec"]["devices"] for one in objects if one["kind"] == "ResourceSlice")
    first[2]["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
    second[3]["taints"] = [{"key": "gpu.nvidia.com/ecc", "value": "double-bit", "effect": "NoSchedule"}]
    second[4]["attributes"]["driverVersion"] = {"version": "580.65.6"}
    cluster = save(tmp_path, *objects)

    def found(*arguments: str) -> list[tuple[str, str]]:
        code, answer = asked(dryrun, cluster, *arguments)
        return [(one["node"], one["device"]) for one in answer["devices"]] if code != 2 else []

    assert found("--health", "any") == [(NODE, "gpu-2"), (OTHER, "gpu-3")]
    assert found("--health", "xid=79") == [(NODE, "gpu-2")]
    assert found("--health", "xid=48") == []
    assert found(OTHER, "--health", "any") == [(OTHER, "gpu-3")]
    assert found("--driver-version", "580.65.06") == [(OTHER, "gpu-4")]
    expression = "device.attributes['gpu.nvidia.com'].gpuModuleID == 1"
    assert len(found("--selector", expression)) == 2


def test_evicted_pods_and_where_their_successors_go(dryrun: DryRun, tmp_path: Path) -> None:
    objects = two_nodes(
        *running("moves", NODE, "gpu-0"),
        *running("tolerates", NODE, "gpu-1", tolerations=[TOLERATING]),
        *running("later", NODE, "gpu-2", tolerations=[{**TOLERATING, "tolerationSeconds": 60}]),
        *running("alone", NODE, "gpu-3", owner=""),
        *running("elsewhere", OTHER, "gpu-0"),
    )
    code, answer = asked(dryrun, save(tmp_path, *objects), NODE)
    evicted = {one["pod"]: one for one in answer["evicted"]}
    assert set(evicted) == {"team/moves", "team/later", "team/alone"}
    assert evicted["team/moves"]["then"]["node"] == OTHER
    assert evicted["team/moves"]["then"]["devices"] == [f"{OTHER}/gpu-1"]
    assert evicted["team/later"]["afterSeconds"] == 60
    assert evicted["team/alone"]["madeAgain"] is False
    assert [one["pod"] for one in answer["staying"]] == ["team/tolerates"]
    assert evicted["team/later"]["evictedAgain"], "its claim accepts tainted devices for a minute"
    assert code == 1


def test_evicted_pod_that_fits_nowhere_has_a_reason(dryrun: DryRun, tmp_path: Path) -> None:
    full = [running(f"b{index}", OTHER, f"gpu-{index}") for index in range(7)]
    objects = two_nodes(
        *running("first", NODE, "gpu-0"), *running("second", NODE, "gpu-1"), *(one for each in full for one in each)
    )
    cluster = save(tmp_path, *objects)
    code, answer = asked(dryrun, cluster, NODE)
    assert code == 1
    assert [one["then"]["node"] for one in answer["evicted"]] == [OTHER, None]
    assert "cannot allocate all claims" in answer["evicted"][1]["then"]["reason"]
    _, out, _ = dryrun("drain", NODE, "--slices", cluster, "-o", "table")
    assert "fits nowhere" in out


def test_pod_of_high_priority_comes_first(dryrun: DryRun, tmp_path: Path) -> None:
    full = [one for index in range(7) for one in running(f"b{index}", OTHER, f"gpu-{index}")]
    objects = two_nodes(*running("moves", NODE, "gpu-0"), *full, pod("waits", priority=10), claim("waits"))
    _, answer = asked(dryrun, save(tmp_path, *objects), NODE)
    assert answer["blocked"] == [], "it takes the last free GPU of the other node"
    assert [one["then"]["node"] for one in answer["evicted"]] == [None]


def test_pending_pod_that_can_no_longer_start(dryrun: DryRun, tmp_path: Path) -> None:
    full = [one for index in range(8) for one in running(f"b{index}", OTHER, f"gpu-{index}")]
    objects = two_nodes(*full, pod("waits"), claim("waits"))
    code, answer = asked(dryrun, save(tmp_path, *objects), NODE, "--effect", "NoSchedule")
    assert code == 1
    assert [one["pod"] for one in answer["blocked"]] == ["team/waits"]
    assert answer["blocked"][0]["now"]["node"] == NODE
    assert answer["evicted"] == []


def test_effect_none_does_nothing(dryrun: DryRun, tmp_path: Path) -> None:
    objects = two_nodes(*running("train", NODE, "gpu-0"), pod("waits"), claim("waits"))
    code, answer = asked(dryrun, save(tmp_path, *objects), "H100", "--effect", "None")
    assert code == 0
    assert (answer["evicted"], answer["blocked"]) == ([], [])
    assert len(answer["devices"]) == 16


def test_claim_that_several_pods_share_is_allocated_once_again(dryrun: DryRun, tmp_path: Path) -> None:
    shared = claim("shared", NODE, ["gpu-0"], users=["a", "b"])
    objects = two_nodes(shared, pod("a", NODE, claim="shared"), pod("b", NODE, claim="shared"))
    _, answer = asked(dryrun, save(tmp_path, *objects), f"{NODE}/0")
    places = [one["then"] for one in answer["evicted"]]
    assert {place["node"] for place in places} == {NODE}
    assert {tuple(place["devices"]) for place in places} == {(f"{NODE}/gpu-1",)}


@pytest.mark.parametrize("release", [release for release in RELEASES if minor_of(release) >= 34])
def test_version_of_the_rule_is_that_of_the_release(release: str, dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *two_nodes())
    gates = () if minor_of(release) >= 37 else ("--feature-gates", "DRADeviceTaintRules=true")
    code, out, err = dryrun("drain", f"{NODE}/0", "--slices", cluster, "--kubernetes-version", release, *gates)
    assert code == 0, err
    expected = "v1" if minor_of(release) >= 37 else "v1beta2" if minor_of(release) == 36 else "v1alpha3"
    assert yaml.load(out, yaml.CSafeLoader)["apiVersion"] == f"resource.k8s.io/{expected}"


def test_release_without_rules_gets_a_policy_that_excludes_the_gpu(dryrun: DryRun, tmp_path: Path) -> None:
    objects = two_nodes(*running("train", NODE, "gpu-5"))
    devices = next(one for one in objects if one["kind"] == "ResourceSlice")["spec"]["devices"]
    cluster = save(tmp_path, *objects)
    code, out, err = dryrun("drain", f"{NODE}/5", "--slices", cluster, "--kubernetes-version", "1.36")
    uuid = devices[5]["attributes"]["uuid"]["string"]
    assert yaml.load(out, yaml.CSafeLoader) == {
        "policy": {"gpus": [{"match": {"nodes": [NODE], "uuids": [uuid]}, "publish": False}]}
    }
    assert "stays: 1 pod" in err
    assert code == 0


def test_policy_selects_the_gpus_of_a_simulated_node(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *nodes("h100x8", 1))
    arguments = ("--slices", cluster, "--kubernetes-version", "1.36")
    _, out, _ = dryrun("drain", f"{NODE}/5", *arguments)
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump(yaml.load(out, yaml.CSafeLoader)["policy"]), encoding="utf-8")
    _, out, _ = dryrun("gpus", NODE, "--with-node", "h100x8", "--policy", policy, "-o", "json")
    names = [gpu["name"] for node in json.loads(out)["nodes"] for gpu in node["gpus"]]
    assert names == ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-6", "gpu-7"]


RULE: JSON = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "rule"},
    "spec": {"taint": {"key": "example.com/bad", "effect": "NoExecute"}},
}


def with_selector(**selector: str) -> JSON:
    return {**RULE, "spec": {**RULE["spec"], "deviceSelector": selector}}


FILES = [
    (
        RULE,
        "1.37",
        "without a selector, this rule matches 17 devices of 2 drivers (gpu.nvidia.com 16, nic.example.com 1)",
    ),
    (RULE, "1.38", "without a selector, this rule matches 0 devices"),
    (with_selector(), "1.38", "with an empty selector, this rule matches 17 devices of 2 drivers"),
    (with_selector(device="gpu-0"), "1.37", "without a driver, this rule matches 2 devices of gpu.nvidia.com"),
    (with_selector(driver="gpu.nvidia.com", pool=NODE), "1.37", "this rule matches 8 devices of gpu.nvidia.com"),
]


@pytest.mark.parametrize(("rule", "release", "said"), FILES)
def test_rules_in_a_file_are_judged(
    rule: JSON, release: str, said: str, dryrun: DryRun, tmp_path: Path, write: Write
) -> None:
    nic = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "nics"},
        "spec": {
            "driver": "nic.example.com",
            "nodeName": NODE,
            "pool": {"name": "nics", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "nic-0"}],
        },
    }
    cluster = save(tmp_path, *two_nodes(nic))
    file = write("rule.yaml", rule)
    _, out, err = dryrun("drain", "-f", file, "--slices", cluster, "-o", "table", "--kubernetes-version", release)
    assert said in out, err


def test_rule_without_a_selector_keeps_pods_away_and_evicts_none(dryrun: DryRun, tmp_path: Path, write: Write) -> None:
    cluster = save(tmp_path, *two_nodes(*running("train", NODE, "gpu-0"), pod("waits"), claim("waits")))
    _, answer = asked(dryrun, cluster, "-f", write("rule.yaml", RULE), "--kubernetes-version", "1.37")
    assert answer["evicted"] == []
    assert [one["pod"] for one in answer["blocked"]] == ["team/waits"]


def test_undo_prints_the_rules_of_the_cluster(dryrun: DryRun, tmp_path: Path) -> None:
    full = [one for index in range(8) for one in running(f"b{index}", OTHER, f"gpu-{index}")]
    objects = two_nodes(*full, pod("waits"), claim("waits"))
    plain = save(tmp_path, *objects)
    _, out, _ = dryrun("drain", NODE, "--slices", plain)
    rule = yaml.load(out, yaml.CSafeLoader)
    foreign = with_selector(driver="gpu.nvidia.com", pool=OTHER)
    drained = save(tmp_path, *objects, rule, foreign)
    code, out, err = dryrun("drain", "--undo", "--slices", drained)
    assert code == 0
    assert list(yaml.load_all(out, yaml.CSafeLoader)) == [rule]
    assert "can start then: 1 pod" in err


def test_undo_of_devices_without_a_rule_is_an_error(dryrun: DryRun, tmp_path: Path) -> None:
    cluster = save(tmp_path, *two_nodes(), with_selector(driver="gpu.nvidia.com", pool=OTHER))
    code, out, err = dryrun("drain", NODE, "--undo", "--slices", cluster)
    assert (code, out) == (2, "")
    assert "no DeviceTaintRule with the taint gpu.nvidia.com/drain" in err


ERRORS = [
    ((), "name a NODE, NODE/GPU or MODEL"),
    (("nowhere",), "has no such node and no such model"),
    ((f"{NODE}/99",), "the node has no such GPU and no such device"),
    (("B200",), "has no such node and no such model"),
    ((NODE, "--taint", "a b"), "is not of the form KEY or KEY=VALUE"),
    ((NODE, "--selector", "1 +"), "--selector: "),
    ((NODE, "--health", "xid"), "no device of"),
]


@pytest.mark.parametrize(("arguments", "said"), ERRORS)
def test_wrong_input_is_an_error(arguments: tuple[str, ...], said: str, dryrun: DryRun, tmp_path: Path) -> None:
    code, out, err = dryrun("drain", *arguments, "--slices", save(tmp_path, *two_nodes()))
    assert (code, out) == (2, "")
    assert said in err


def test_devices_without_pods_name_the_holders(dryrun: DryRun, tmp_path: Path) -> None:
    slices = [one for one in nodes("h100x8", 1) if one["kind"] == "ResourceSlice"]
    file = tmp_path / "slices.json"
    held = claim("train", NODE, ["gpu-0"])
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*slices, held]}), encoding="utf-8")
    code, answer = asked(dryrun, file, NODE)
    assert code == 3
    assert answer["holders"] == ["team/train"]


def test_drain_of_all_nodes_says_that_no_node_is_left(dryrun: DryRun, tmp_path: Path, write: Write) -> None:
    cluster = save(tmp_path, *two_nodes(claim("waits")))
    manifest = write("pod.yaml", pod("waits", owner=""))
    code, out, _ = dryrun("fit", manifest, "--slices", cluster, "--drain", NODE, "--drain", OTHER)
    assert code == 1
    assert "no node is left" in out
    assert "the only node" not in out
