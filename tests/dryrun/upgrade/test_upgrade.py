# SPDX-License-Identifier: Apache-2.0
"""What an upgrade changes: each kind of difference, and the exit status."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from ..conftest import DryRun, Write, gpu, slice_of
from ..test_whole_pod import claim, node, pod, running, several

JSON = dict[str, Any]


class Upgrade:
    """Compares two releases for a cluster of objects."""

    def __init__(self, dryrun: DryRun, write: Write) -> None:
        self._dryrun = dryrun
        self._write = write

    def __call__(
        self, now: str, then: str, *cluster: JSON, files: Sequence[JSON] = (), flags: Sequence[str] = ()
    ) -> tuple[int, JSON]:
        """The exit status and the report."""
        code, out, err = self.text(now, then, *cluster, files=files, flags=("-o", "json", *flags))
        assert out, err
        report: JSON = json.loads(out)
        return code, report

    def text(
        self, now: str, then: str, *cluster: JSON, files: Sequence[JSON] = (), flags: Sequence[str] = ()
    ) -> tuple[int, str, str]:
        """The exit status, standard output and standard error."""
        slices = self._write("cluster.json", several(cluster))
        manifests = [self._write("manifests.json", several(files))] if files else []
        return self._dryrun(
            "upgrade", "--slices", slices, "--kubernetes-version", now, "--to", then, *manifests, *flags
        )


@pytest.fixture
def upgrade(dryrun: DryRun, write: Write) -> Upgrade:
    return Upgrade(dryrun, write)


def of_aspect(report: JSON, aspect: str, subject: str = "") -> list[JSON]:
    return [one for one in report["differences"] if one["aspect"] == aspect and subject in one["subject"]]


def effects(report: JSON, aspect: str, subject: str = "") -> list[str]:
    return [one["effect"] for one in of_aspect(report, aspect, subject)]


def held(name: str, pool: str, device: str, user: str, **more: Any) -> JSON:
    """A claim that a running pod has."""
    made = claim(name, **more)
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": pool, "device": device}
    reserved = [{"resource": "pods", "name": user, "uid": user}]
    made["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
    return made


def device_class(expression: str) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def using(name: str, on: str, device: str) -> list[JSON]:
    """A running pod with a GPU."""
    return [held(f"{name}-gpu", on, device, name), running(name, on, "1", resourceClaims=[reference(f"{name}-gpu")])]


def reference(name: str) -> JSON:
    return {"name": "gpus", "resourceClaimName": name}


def test_nothing_breaks_for_pods_that_fit_by_both_releases(upgrade: Upgrade) -> None:
    code, report = upgrade("1.37", "1.38", node("a"), slice_of("a", gpu("gpu-0")), *using("train", "a", "gpu-0"))
    assert code == 0
    assert of_aspect(report, "verdict") == []
    (count,) = [one for one in report["namespaces"] if one["namespace"] == "default"]
    assert (count["objects"], count["fitNow"], count["fitThen"]) == (1, 1, 1)


def asking_for_memory() -> list[JSON]:
    """A pending pod whose claim names the capacity with the driver's domain, which the device publishes without."""
    shared = gpu("gpu-0")
    shared["allowMultipleAllocations"] = True
    wanted = claim("part", capacity={"requests": {"gpu.nvidia.com/memory": "10Gi"}})
    return [node("a"), slice_of("a", shared), wanted, pod("infer", claim="part")]


def test_pending_pod_that_fits_then_is_helped(upgrade: Upgrade) -> None:
    code, report = upgrade("1.37", "1.38", *asking_for_memory())
    assert code == 0
    (difference,) = of_aspect(report, "verdict", "Pod infer")
    assert difference["effect"] == "helps"
    assert difference["now"].startswith("fits nowhere: 1 node: ")
    assert difference["then"] == "fits on a with gpu-0 (memory 10Gi)"


def test_pending_pod_that_does_not_fit_then_breaks_the_upgrade(upgrade: Upgrade) -> None:
    code, report = upgrade("1.38", "1.37", *asking_for_memory())
    assert code == 1
    assert report["breaks"]
    assert effects(report, "verdict", "Pod infer") == ["breaks"]


def taint_rule(effect: str) -> JSON:
    """A rule without a selector."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "maintenance"},
        "spec": {"taint": {"key": "example.com/maintenance", "effect": effect}},
    }


def test_rule_that_begins_to_select_every_device_evicts_running_pods(upgrade: Upgrade) -> None:
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), *using("train", "a", "gpu-0"), taint_rule("NoExecute")]
    code, report = upgrade("1.38", "1.37", *cluster)
    assert code == 1
    evicted = [one for one in of_aspect(report, "verdict", "Pod train") if "is evicted" in one["then"]]
    assert [(one["effect"], one["now"]) for one in evicted] == [("breaks", "keeps its devices")]
    assert "a/gpu-0 has the taint example.com/maintenance" in evicted[0]["then"]
    assert [one["effect"] for one in of_aspect(upgrade("1.37", "1.38", *cluster)[1], "verdict", "Pod train")] == [
        "helps",
        "helps",
    ]


def test_toleration_keeps_a_pod_from_being_evicted(upgrade: Upgrade) -> None:
    made, train = using("train", "a", "gpu-0")
    tolerations = [{"key": "example.com/maintenance", "operator": "Exists"}]
    made["status"]["allocation"]["devices"]["results"][0]["tolerations"] = tolerations
    made["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = tolerations
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), made, train, taint_rule("NoExecute")]
    assert of_aspect(upgrade("1.38", "1.37", *cluster)[1], "verdict", "Pod train") == []


def test_pod_with_an_extended_resource_is_evicted_from_1_38_on(upgrade: Upgrade) -> None:
    tainted = gpu("gpu-0")
    tainted["taints"] = [{"key": "example.com/broken", "effect": "NoExecute"}]
    served = device_class("device.driver == 'gpu.nvidia.com'")
    served["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    made = held("train-extended", "a", "gpu-0", "train")
    made["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "train", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    train = running("train", "a", "1", extended={"nvidia.com/gpu": "1"})
    code, report = upgrade("1.37", "1.38", node("a"), slice_of("a", tainted), served, made, train)
    assert code == 1
    assert [one["effect"] for one in of_aspect(report, "verdict", "Pod train") if "evicted" in one["then"]] == [
        "breaks"
    ]


def distinct() -> list[JSON]:
    """Three devices with two values, and a pending pod that wants three different values."""
    devices = [gpu("gpu-0", "one"), gpu("gpu-1", "two"), gpu("gpu-2", "one")]
    wanted = claim("apart", 3)
    wanted["spec"]["devices"]["constraints"] = [{"distinctAttribute": "gpu.nvidia.com/productName"}]
    return [node("a"), slice_of("a", *devices), wanted, pod("spread-out", claim="apart")]


def test_defect_that_disappears_is_named(upgrade: Upgrade) -> None:
    code, report = upgrade("1.36", "1.37", *distinct())
    assert code == 1
    assert effects(report, "verdict", "Pod spread-out") == ["breaks"]
    (difference,) = of_aspect(report, "defect", "Pod spread-out")
    assert difference["effect"] == "helps"
    assert difference["now"].startswith("(kubernetes/kubernetes#140438): distinctAttribute compares only two devices")


def test_defect_that_appears_is_named(upgrade: Upgrade) -> None:
    _, report = upgrade("1.37", "1.36", *distinct())
    assert effects(report, "verdict", "Pod spread-out") == ["helps"]
    assert effects(report, "defect", "Pod spread-out") == ["changes"]


def counters_beside_devices() -> JSON:
    """A slice as 1.34 has it."""
    taken = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    made = slice_of("a", *({**gpu(name), "consumesCounters": taken} for name in ("half-0", "half-1")))
    made["spec"]["sharedCounters"] = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]
    return made


PARTITIONS = ("--feature-gates-now", "DRAPartitionableDevices=true")


def test_pool_whose_slices_a_release_reads_otherwise_loses_its_devices(upgrade: Upgrade) -> None:
    code, report = upgrade("1.34", "1.35", node("a"), counters_beside_devices(), flags=PARTITIONS)
    assert code == 1
    (lost,) = of_aspect(report, "pool", "a of gpu.nvidia.com")
    assert (lost["effect"], lost["now"], lost["then"]) == ("breaks", "2 devices", "no devices")


def test_slice_that_the_server_refuses_then_is_named(upgrade: Upgrade) -> None:
    _, report = upgrade("1.34", "1.35", node("a"), counters_beside_devices(), flags=PARTITIONS)
    (refused,) = of_aspect(report, "pool", "if it is written again")
    assert (refused["effect"], refused["now"]) == ("changes", "accepted")
    assert refused["then"].startswith("refused, a-slice for spec")


def test_class_that_selects_nothing_then_breaks_the_upgrade(upgrade: Upgrade) -> None:
    code, report = upgrade("1.34", "1.35", node("a"), counters_beside_devices(), flags=PARTITIONS)
    assert code == 1
    assert effects(report, "verdict", "DeviceClass gpu.nvidia.com") == ["breaks"]


def test_template_of_the_cluster_is_judged_by_a_claim_that_is_made_from_it(upgrade: Upgrade) -> None:
    spec = {"spec": claim()["spec"]}
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"}}
    cluster = [node("a"), counters_beside_devices(), {**template, "spec": spec}]
    _, report = upgrade("1.34", "1.35", *cluster, flags=PARTITIONS)
    assert effects(report, "verdict", "ResourceClaimTemplate one-gpu") == ["breaks"]


INCLUDES = "device.attributes['gpu.nvidia.com'].models.includes('A')"


def test_expression_that_only_one_release_accepts_is_named(upgrade: Upgrade) -> None:
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), device_class(INCLUDES)]
    code, report = upgrade("1.38", "1.35", *cluster)
    assert code == 1
    (difference,) = of_aspect(report, "expression")
    assert difference["effect"] == "breaks"
    assert difference["subject"] == f"DeviceClass gpu.nvidia.com: selector 0: {INCLUDES}"
    assert difference["now"].startswith("may cost ")
    assert difference["then"].startswith("does not compile: ")
    assert effects(upgrade("1.35", "1.38", *cluster)[1], "expression") == ["helps"]


def test_expression_that_is_refused_only_in_new_objects_is_told_apart(upgrade: Upgrade) -> None:
    cluster = [node("a"), slice_of("a", gpu("gpu-0")), device_class(INCLUDES)]
    (difference,) = of_aspect(upgrade("1.37", "1.38", *cluster)[1], "expression")
    assert difference["now"].startswith("is evaluated if it is stored already, and is refused in new objects: ")


def test_cost_of_an_expression_that_differs_is_a_change(upgrade: Upgrade) -> None:
    expression = "device.attributes['gpu.nvidia.com'].productName.startsWith('NVIDIA')"
    code, report = upgrade("1.36", "1.37", node("a"), slice_of("a", gpu("gpu-0")), device_class(expression))
    assert code == 0
    (difference,) = of_aspect(report, "expression")
    assert difference["effect"] == "changes"
    limit = "may cost 5 of 1000000, and costs at most"
    assert (difference["now"], difference["then"]) == (
        f"{limit} 7 on the known devices",
        f"{limit} 5 on the known devices",
    )


def test_field_that_a_gate_drops_is_named_with_the_gate(upgrade: Upgrade) -> None:
    tainted = gpu("gpu-0")
    tainted["taints"] = [{"key": "example.com/old", "effect": "NoSchedule"}]
    _, report = upgrade("1.36", "1.35", node("a"), slice_of("a", tainted))
    (difference,) = of_aspect(report, "field", "ResourceSlice")
    assert difference["subject"] == "ResourceSlice spec.devices[].taints"
    assert (difference["now"], difference["then"]) == ("kept", "dropped and ignored: DRADeviceTaints is off")
    assert effects(upgrade("1.35", "1.36", node("a"), slice_of("a", tainted))[1], "field", "ResourceSlice") == ["helps"]


def test_field_that_a_release_has_removed_is_named(upgrade: Upgrade) -> None:
    made = slice_of("a", gpu("gpu-0"))
    path = "spec.devices[].nodeAllocatableResourceMappings"
    made["metadata"]["annotations"] = {"dra-dryrun.gpu.nvidia.com/unread": path}
    flags = ("--feature-gates-now", "DRANodeAllocatableResources=true")
    (difference,) = of_aspect(upgrade("1.36", "1.37", node("a"), made, flags=flags)[1], "field")
    assert (difference["now"], difference["then"]) == ("kept", "was removed in Kubernetes 1.37")


def test_manifest_in_a_version_that_is_gone_breaks_the_upgrade(upgrade: Upgrade) -> None:
    old = {**claim("old"), "apiVersion": "resource.k8s.io/v1beta1"}
    old["spec"] = {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.nvidia.com"}]}}
    code, report = upgrade("1.37", "1.38", node("a"), slice_of("a", gpu("gpu-0")), files=[old])
    assert code == 1
    (difference,) = of_aspect(report, "apiVersion")
    assert difference["effect"] == "breaks"
    assert difference["subject"] == "resource.k8s.io/v1beta1 ResourceClaim"
    assert difference["then"] == "not served any more: use resource.k8s.io/v1"


def test_version_that_becomes_deprecated_is_a_change(upgrade: Upgrade) -> None:
    old = {**claim("old"), "apiVersion": "resource.k8s.io/v1beta2"}
    code, report = upgrade("1.35", "1.36", node("a"), slice_of("a", gpu("gpu-0")), files=[old])
    assert code == 0
    (difference,) = of_aspect(report, "apiVersion")
    assert difference["effect"] == "changes"
    assert difference["then"].startswith("served where --runtime-config asks for it, deprecated")


def test_gates_and_rules_of_the_releases_are_compared(upgrade: Upgrade) -> None:
    _, report = upgrade("1.37", "1.38", node("a"), slice_of("a", gpu("gpu-0")))
    (gone,) = of_aspect(report, "gate", "DynamicResourceAllocation")
    assert gone["then"].startswith("gone: ")
    (ended,) = of_aspect(report, "defect", "kubernetes/kubernetes#141648")
    assert (ended["now"], ended["then"]) == ("applies", "does not apply")


def test_gate_that_is_set_to_a_value_that_is_locked_then_breaks_the_upgrade(upgrade: Upgrade) -> None:
    flags = ("--feature-gates-now", "DRADeviceTaints=false")
    code, report = upgrade("1.37", "1.38", node("a"), slice_of("a", gpu("gpu-0")), flags=flags)
    assert code == 1
    (conflict,) = [one for one in of_aspect(report, "gate") if one["effect"] == "breaks"]
    assert (conflict["subject"], conflict["now"]) == ("DRADeviceTaints", "set to false")
    assert "has locked the feature gate DRADeviceTaints to true" in conflict["then"]


def test_pod_without_its_claim_is_not_judged(upgrade: Upgrade) -> None:
    waiting = pod("waiting", claim="missing")
    code, report = upgrade("1.37", "1.38", node("a"), slice_of("a", gpu("gpu-0")), waiting)
    assert code == 3
    assert [(one["object"], one["text"]) for one in report["notes"]] == [
        ("Pod waiting", "a claim of the pod does not exist")
    ]


def test_equal_pods_on_equivalent_nodes_are_judged_once(upgrade: Upgrade) -> None:
    cluster = [part for name in ("a", "b", "c") for part in (node(name), slice_of(name, gpu("gpu-0")))]
    cluster += [part for name in ("a", "b", "c") for part in using(f"train-{name}", name, "gpu-0")]
    (difference,) = of_aspect(upgrade("1.38", "1.37", *cluster, taint_rule("NoSchedule"))[1], "verdict", "Pod")
    assert difference["subject"] == "Pod train-a and 2 equal ones"
    assert difference["members"] == ["train-a", "train-b", "train-c"]


def test_pod_that_its_own_node_refuses_then_goes_to_another_node(upgrade: Upgrade) -> None:
    tainted = gpu("gpu-0")
    tainted["taints"] = [{"key": "example.com/old", "effect": "NoSchedule"}]
    cluster = [node("a"), slice_of("a", tainted), node("b"), slice_of("b", gpu("gpu-0")), *using("train", "a", "gpu-0")]
    code, report = upgrade("1.35", "1.36", *cluster)
    assert code == 0
    (difference,) = of_aspect(report, "verdict", "Pod train")
    assert difference["effect"] == "changes"
    assert (difference["now"], difference["then"]) == ("fits on a with gpu-0", "fits on b with gpu-0")


def test_claim_that_two_pods_share_is_judged_by_itself(upgrade: Upgrade) -> None:
    shared = held("both", "a", "gpu-0", "first")
    shared["status"]["reservedFor"].append({"resource": "pods", "name": "second", "uid": "second"})
    users = [running(name, "a", "1", resourceClaims=[reference("both")]) for name in ("first", "second")]
    _, report = upgrade(
        "1.38", "1.37", node("a"), slice_of("a", gpu("gpu-0")), shared, *users, taint_rule("NoSchedule")
    )
    assert effects(report, "verdict", "ResourceClaim both") == ["breaks"]
    assert effects(report, "verdict", "Pod") == []


def test_workload_of_a_file_is_judged(upgrade: Upgrade) -> None:
    *cluster, wanted, single = asking_for_memory()
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "part"}}
    spec = {**single["spec"], "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "part"}]}
    served = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve"}}
    labels = {"app": "serve"}
    pods = {"metadata": {"labels": labels}, "spec": spec}
    served["spec"] = {"replicas": 2, "selector": {"matchLabels": labels}, "template": pods}
    files = [{**template, "spec": {"spec": wanted["spec"]}}, served]
    code, report = upgrade("1.38", "1.37", *cluster, files=files)
    assert code == 1
    assert "breaks" in effects(report, "verdict", "Deployment serve")


def test_pods_without_devices_are_counted(upgrade: Upgrade) -> None:
    _, report = upgrade("1.37", "1.38", node("a"), slice_of("a", gpu("gpu-0")), running("web", "a", "1"))
    assert report["unaffectedPods"] == 1


def test_table_has_a_row_for_each_namespace(upgrade: Upgrade) -> None:
    _, out, _ = upgrade.text("1.37", "1.38", *asking_for_memory())
    assert out.splitlines()[0].startswith("from Kubernetes 1.37 to Kubernetes 1.38 (a preview), ")
    assert "default    1        0        1         0      0       1     0" in out
    assert "  helps  default: Pod infer" in out
    assert "  ends  a capacity request does not find the capacity" in out
    assert out.splitlines()[-1].startswith("0 break, ")


def test_release_or_gates_have_to_be_named(dryrun: DryRun) -> None:
    code, _, err = dryrun("upgrade", "--built-in")
    assert code == 2
    assert "name the release with --to, gates with --feature-gates, or a policy with --driver-policy" in err


def test_gate_that_the_release_does_not_know_is_an_error(dryrun: DryRun) -> None:
    code, _, err = dryrun("upgrade", "--built-in", "--to", "1.38", "--feature-gates", "DynamicResourceAllocation=true")
    assert code == 2
    assert "Kubernetes 1.38 does not know the feature gate DynamicResourceAllocation" in err


def test_gates_alone_are_compared_in_the_same_release(dryrun: DryRun, write: Write) -> None:
    made = counters_beside_devices()
    counters = {**made, "metadata": {"name": "a-counters"}, "spec": {**made["spec"], "devices": []}}
    del made["spec"]["sharedCounters"]
    for one in (made, counters):
        one["spec"]["pool"] = {**one["spec"]["pool"], "resourceSliceCount": 2}
    slices = write("cluster.json", several([node("a"), made, counters]))
    flags = ("--feature-gates", "DRAPartitionableDevices=false", "-o", "json")
    code, out, err = dryrun("upgrade", "--slices", slices, *flags)
    assert code == 1, err
    report = json.loads(out)
    assert report["now"]["kubernetesVersion"] == report["then"]["kubernetesVersion"]
    assert "breaks" in effects(report, "verdict", "DeviceClass gpu.nvidia.com")
