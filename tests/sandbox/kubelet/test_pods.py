# SPDX-License-Identifier: Apache-2.0
"""A pod's way through kubelet: claims prepared, containers created, and all of it undone in order."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.kubelet import ClaimRef, Kubelet, KubeletOptions
from dra_driver.sandbox.kubelet.model import RUN_SECONDS

from .conftest import WriteCdi
from .memory_cluster import EventSeen, MemoryCluster, make_claim, make_pod
from .scripted_plugin import DRIVER, ScriptedPlugin, nothing_to_say, one_device_each

OTHER = "nic.example.com"


def test_a_pod_runs_with_what_its_claims_inject(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_pod_running("default", "pod")
        assert plugin.calls == [("k8s.io.kubelet.pkg.apis.dra.v1", "Prepare", (ClaimRef("default", "gpu", "uid-gpu"),))]
    container = kubelet.container("default", "pod", "main")
    assert container is not None
    assert container.env["CLAIM"] == "uid-gpu"
    status = cluster.status("pod")
    assert status["phase"] == "Running"
    assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
        ["Initialized", "Ready", "ContainersReady", "PodScheduled"], "True"
    )
    assert status["containerStatuses"][0]["state"].keys() == {"running"}


def test_each_driver_gets_all_of_the_pods_claims_in_one_call(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path
) -> None:
    with ScriptedPlugin(root) as gpu, ScriptedPlugin(root, OTHER) as nic:
        for plugin in (gpu, nic):
            plugin.prepare = nothing_to_say
        kubelet.wait_registered(DRIVER)
        kubelet.wait_registered(OTHER)
        for name, drivers in (("a", [DRIVER]), ("b", [OTHER, DRIVER]), ("c", [OTHER])):
            cluster.add_claim(make_claim(name, pods=["uid-pod"], drivers=drivers))
        cluster.add_pod(make_pod("pod", "a", "b", "c"))
        kubelet.wait_pod_running("default", "pod")
        assert gpu.called("Prepare") == [("a", "b")]
        assert nic.called("Prepare") == [("b", "c")]
        cluster.ask_to_delete("pod")
        kubelet.wait_pod_gone("default", "pod")
        assert gpu.called("Unprepare") == [("a", "b")]
        assert nic.called("Unprepare") == [("b", "c")]


def test_a_generated_claim_and_an_init_container_work_too(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-pod-gpu-x")
    raw: dict[str, Any] = make_pod("pod", "gpu", request="gpu")
    raw["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "template"}]
    raw["spec"]["initContainers"] = [{**raw["spec"]["containers"][0], "name": "init"}]
    raw["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "pod-gpu-x"}]
    cluster.add_claim(make_claim("pod-gpu-x", pods=["uid-pod"], owner="uid-pod"))
    with ScriptedPlugin(root):
        kubelet.wait_registered(DRIVER)
        cluster.add_pod(raw)
        kubelet.wait_pod_running("default", "pod")
    for name in ("init", "main"):
        container = kubelet.container("default", "pod", name)
        assert container is not None
        assert container.env["CLAIM"] == "uid-pod-gpu-x"
    (init,) = cluster.status("pod")["initContainerStatuses"]
    assert init["state"]["terminated"]["exitCode"] == 0


def unknown_claim(claims: Any) -> Mapping[str, Any]:
    return {"claims": {**one_device_each(claims)["claims"], "uid-unknown": {}}}


def no_claims(claims: Any) -> Mapping[str, Any]:
    return {}


def claim_error(claims: Any) -> Mapping[str, Any]:
    return {"claims": {claim.uid: {"error": "no such GPU"} for claim in claims}}


def call_error(claims: Any) -> Mapping[str, Any]:
    raise RuntimeError("NVML is away")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (unknown_claim, "NodePrepareResources returned result for unknown claim UID uid-unknown"),
        (no_claims, "NodePrepareResources skipped 1 ResourceClaims"),
        (claim_error, "NodePrepareResources failed for ResourceClaim gpu: no such GPU"),
        (call_error, "NodePrepareResources: rpc error: code = Internal desc = NVML is away"),
    ],
)
def test_a_failed_prepare_is_an_event_and_is_tried_again_when_the_pod_changes(
    patient: KubeletOptions,
    cluster: MemoryCluster,
    root: Path,
    cdi: WriteCdi,
    script: Callable[[Any], Mapping[str, Any]],
    error: str,
) -> None:
    cdi("uid-gpu")
    with Kubelet(patient, cluster) as kubelet, ScriptedPlugin(root) as plugin:
        plugin.prepare = script
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_event("FailedPrepareDynamicResources", "default/pod")
        kubelet.wait(lambda: bool(cluster.events), what="the event sent")
        assert cluster.status("pod")["phase"] == "Pending"
        waiting = cluster.status("pod")["containerStatuses"][0]["state"]["waiting"]
        assert waiting == {"reason": "ContainerCreating"}
        plugin.prepare = one_device_each
        cluster.touch_pod("pod")
        kubelet.wait_pod_running("default", "pod")
        assert plugin.called("Prepare") == [("gpu",)] * 2
    message = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
    assert cluster.events == [EventSeen("pod", "FailedPrepareDynamicResources", message)]


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (None, 'fetch ResourceClaim gpu: resourceclaims.resource.k8s.io "gpu" not found'),
        (
            make_claim("gpu", pods=["uid-other"]),
            "pod pod (uid-pod) is not allowed to use ResourceClaim gpu (uid-gpu)",
        ),
        (make_claim("gpu", pods=["uid-pod"], allocated=False), "ResourceClaim gpu: not allocated"),
        (make_claim("gpu", pods=["uid-pod"], drivers=[OTHER]), f"DRA driver {OTHER} is not registered"),
    ],
)
def test_a_claim_that_cannot_be_used_is_not_prepared_at_all(
    patient: KubeletOptions, cluster: MemoryCluster, root: Path, claim: Any, error: str
) -> None:
    with Kubelet(patient, cluster) as kubelet, ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        cluster.add_claim(make_claim("good", pods=["uid-pod"]))
        if claim is not None:
            cluster.add_claim(claim)
        cluster.add_pod(make_pod("pod", "good", "gpu"))
        kubelet.wait(lambda: bool(cluster.events), what="an event")
        assert cluster.events[0].message.endswith(f"prepare dynamic resources: {error}")
        assert kubelet.claims() == ()
        cluster.ask_to_delete("pod")
        kubelet.wait_pod_gone("default", "pod")
    assert plugin.calls == []


def test_a_failure_of_one_driver_asks_the_others_again(kubelet: Kubelet, cluster: MemoryCluster, root: Path) -> None:
    with ScriptedPlugin(root) as gpu, ScriptedPlugin(root, OTHER) as nic:
        gpu.prepare, nic.prepare = nothing_to_say, claim_error
        kubelet.wait_registered(DRIVER)
        kubelet.wait_registered(OTHER)
        cluster.add_claim(make_claim("both", pods=["uid-pod"], drivers=[DRIVER, OTHER]))
        cluster.add_pod(make_pod("pod", "both"))
        kubelet.wait(lambda: len(gpu.called("Prepare")) >= 2, what="a second call")
        assert not any(claim.prepared for claim in kubelet.claims())


def test_a_shared_claim_is_prepared_once_and_unprepared_after_its_last_pod(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        for name in ("first", "second"):
            cluster.run_pod(name, "gpu")
            kubelet.wait_pod_running("default", name)
        assert plugin.called("Prepare") == [("gpu",)]
        cluster.ask_to_delete("first")
        kubelet.wait_pod_gone("default", "first")
        assert plugin.called("Unprepare") == []
        cluster.ask_to_delete("second")
        kubelet.wait_pod_gone("default", "second")
        assert plugin.called("Unprepare") == [("gpu",)]
    assert kubelet.claims() == ()


def test_a_deleted_pod_is_unprepared_before_its_end_is_reported_and_the_object_removed(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    failures = ["busy", "still busy"]

    def busy_at_first(claims: Any) -> Mapping[str, Any]:
        assert not any(write[2:] == ("Succeeded",) for write in cluster.writes)
        return {"claims": {claim.uid: {"error": failures.pop() if failures else ""} for claim in claims}}

    with ScriptedPlugin(root) as plugin:
        plugin.unprepare = busy_at_first
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_pod_running("default", "pod")
        cluster.ask_to_delete("pod")
        kubelet.wait_pod_gone("default", "pod")
        assert plugin.called("Unprepare") == [("gpu",)] * 3
    assert cluster.writes[-2:] == [("status", "pod", "Succeeded"), ("delete", "pod")]
    errors = [entry.message for entry in kubelet.journal.entries("FailedUnprepareDynamicResources")]
    assert errors == [
        f"unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim gpu: {why}"
        for why in ("still busy", "busy")
    ]


def test_a_pod_stays_terminating_while_its_driver_is_away(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    with ScriptedPlugin(root):
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_pod_running("default", "pod")
    kubelet.wait_deregistered(DRIVER)
    cluster.ask_to_delete("pod")
    kubelet.wait_event("FailedUnprepareDynamicResources", "default/pod")
    assert cluster.has_pod("pod")
    with ScriptedPlugin(root):
        kubelet.wait_pod_gone("default", "pod")
    assert not cluster.has_pod("pod")


def test_a_pod_that_ends_by_itself_is_unprepared_and_stays_as_an_object(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        job = make_pod("job", "gpu")
        job["metadata"]["annotations"] = {RUN_SECONDS: "0"}
        cluster.add_claim(make_claim("gpu", pods=["uid-job"]))
        cluster.add_pod(job)
        kubelet.wait_event("PodFinished", "default/job")
        assert plugin.called("Unprepare") == [("gpu",)]
        assert cluster.status("job")["phase"] == "Succeeded"
        cluster.ask_to_delete("job")
        kubelet.wait_pod_gone("default", "job")
        assert plugin.called("Unprepare") == [("gpu",)]


def test_hook_of_helm_succeeds_after_a_while(kubelet: Kubelet, cluster: MemoryCluster) -> None:
    pod = make_pod("hook")
    pod["metadata"]["annotations"] = {"helm.sh/hook": "test"}
    cluster.add_pod(pod)
    kubelet.wait_event("PodFinished", "default/hook")
    assert cluster.status("hook")["phase"] == "Succeeded"


def test_a_claim_whose_prepare_never_succeeded_is_unprepared_all_the_same(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path
) -> None:
    with ScriptedPlugin(root) as plugin:
        plugin.prepare = claim_error
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_event("FailedPrepareDynamicResources", "default/pod")
        cluster.ask_to_delete("pod")
        kubelet.wait_pod_gone("default", "pod")
        assert plugin.called("Unprepare") == [("gpu",)]
    assert kubelet.claims() == ()


def test_a_force_deleted_pod_is_unprepared_too(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_pod_running("default", "pod")
        cluster.force_delete("pod")
        kubelet.wait_pod_gone("default", "pod")
        assert plugin.called("Unprepare") == [("gpu",)]


def test_a_new_claim_of_an_old_name_waits_for_the_old_one(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    cdi("uid-new")
    with ScriptedPlugin(root) as plugin:
        plugin.unprepare = claim_error
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("old", "gpu")
        kubelet.wait_pod_running("default", "old")
        cluster.force_delete("old")
        cluster.add_claim(make_claim("gpu", uid="uid-new", pods=["uid-new-pod"]))
        cluster.add_pod(make_pod("new", "gpu", uid="uid-new-pod"))
        kubelet.wait(lambda: bool(cluster.events), what="an event")
        assert cluster.events[0].message.endswith(
            "old ResourceClaim with same name gpu and different UID uid-gpu still exists (previous pod force-deleted?!)"
        )
        plugin.unprepare = nothing_to_say
        kubelet.wait_pod_running("default", "new")


def test_an_unresolvable_cdi_device_keeps_the_container_waiting_without_another_prepare(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    error = "CDI device injection failed: unresolvable CDI devices example.com/claim=uid-gpu"
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait(lambda: len(cluster.events) >= 2, what="two attempts")
        waiting = cluster.status("pod")["containerStatuses"][0]["state"]["waiting"]
        assert waiting == {"reason": "CreateContainerError", "message": error}
        assert cluster.events[0] == EventSeen("pod", "Failed", f"Error: {error}")
        cdi("uid-gpu")
        kubelet.wait_pod_running("default", "pod")
        assert plugin.called("Prepare") == [("gpu",)]


def test_concurrent_pods_are_prepared_concurrently(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    together = threading.Barrier(4)

    def meet(claims: Any) -> Mapping[str, Any]:
        together.wait(60)
        return one_device_each(claims)

    with ScriptedPlugin(root) as plugin:
        plugin.prepare = meet
        kubelet.wait_registered(DRIVER)
        for number in range(4):
            cdi(f"uid-gpu-{number}")
            cluster.run_pod(f"pod-{number}", f"gpu-{number}")
        for number in range(4):
            kubelet.wait_pod_running("default", f"pod-{number}")


def test_a_pod_that_was_refused_a_claim_does_not_take_it_from_the_pod_that_has_it(
    patient: KubeletOptions, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    with Kubelet(patient, cluster) as kubelet, ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("owner", "gpu")
        kubelet.wait_pod_running("default", "owner")
        cluster.add_pod(make_pod("intruder", "gpu"))
        kubelet.wait_event("FailedPrepareDynamicResources", "default/intruder")
        cluster.ask_to_delete("intruder")
        kubelet.wait_pod_gone("default", "intruder")
        assert plugin.called("Unprepare") == []


def test_a_kubelet_that_ends_cancels_its_calls_and_blames_no_pod(
    options: KubeletOptions, cluster: MemoryCluster, root: Path
) -> None:
    asked, ended = threading.Event(), threading.Event()

    def hang(claims: Any) -> Mapping[str, Any]:
        asked.set()
        ended.wait(60)
        return {}

    with ScriptedPlugin(root) as plugin:
        plugin.prepare = hang
        with Kubelet(options, cluster) as kubelet:
            kubelet.wait_registered(DRIVER)
            cluster.run_pod("pod", "gpu")
            kubelet.wait(asked.is_set, what="a call")
        ended.set()
    assert cluster.events == []
    assert kubelet.journal.entries("FailedPrepareDynamicResources") == ()


def test_a_wait_that_fails_says_what_happened(kubelet: Kubelet) -> None:
    kubelet.wait_ready()
    with pytest.raises(TimeoutError) as caught:
        kubelet.wait_pod_running("default", "nobody", timeout=0.01)
    assert str(caught.value).startswith("waited 0.01 s for pod default/nobody running; the latest entries:")
    assert "NodeReady node-1" in str(caught.value)
