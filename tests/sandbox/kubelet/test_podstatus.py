# SPDX-License-Identifier: Apache-2.0
"""What kubelet says of a pod, and what makes it look at one."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.sandbox.kubelet import ClaimRef, Health
from dra_driver.sandbox.kubelet.model import decode_pod, differs
from dra_driver.sandbox.kubelet.podstatus import (
    ContainerState,
    Running,
    Terminated,
    Waiting,
    allocated_resources,
    phase_of,
    pod_status,
)
from dra_driver.sandbox.kubelet.state import ClaimInfo
from dra_driver.sandbox.kubelet.wire import DeviceHealth, PreparedDevice

from .memory_cluster import make_pod


def pod_of(containers: int = 1, init: int = 0) -> Any:
    """A pod with containers main-0, main-1, … and init-0, …"""
    raw: dict[str, Any] = make_pod("pod")
    raw["spec"]["containers"] = [{"name": f"main-{i}"} for i in range(containers)]
    raw["spec"]["initContainers"] = [{"name": f"init-{i}"} for i in range(init)]
    return decode_pod(raw)


RUNNING, DONE, FAILED = Running("id", 0), Terminated(0, 0), Terminated(143, 0)


@pytest.mark.parametrize(
    ("init", "main", "phase"),
    [
        ([], [Waiting()], "Pending"),
        ([], [RUNNING, Waiting()], "Pending"),
        ([], [RUNNING, RUNNING], "Running"),
        ([], [RUNNING, DONE], "Running"),
        ([], [DONE, DONE], "Succeeded"),
        ([], [DONE, FAILED], "Failed"),
        ([Waiting()], [Waiting()], "Pending"),
        ([DONE], [RUNNING], "Running"),
    ],
)
def test_the_phase_follows_from_the_containers(
    init: list[ContainerState], main: list[ContainerState], phase: str
) -> None:
    states = {f"main-{i}": state for i, state in enumerate(main)} | {f"init-{i}": s for i, s in enumerate(init)}
    assert phase_of(pod_of(len(main), len(init)), states) == phase


def conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["lastTransitionTime"]) for c in status["conditions"]}


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    pod = pod_of()
    first = pod_status(pod, {"main-0": Waiting()}, {}, 0.0, {})
    second = pod_status(pod, {"main-0": RUNNING}, first, 60.0, {})
    assert conditions(first)["Ready"] == ("False", "1970-01-01T00:00:00Z")
    assert conditions(second)["Ready"] == ("True", "1970-01-01T00:01:00Z")
    assert conditions(second)["Initialized"] == ("True", "1970-01-01T00:00:00Z")
    assert second["startTime"] == "1970-01-01T00:00:00Z"
    assert pod_status(pod, {"main-0": RUNNING}, second, 120.0, {}) == second


def test_conditions_of_others_are_kept() -> None:
    other = {"type": "example.com/Gate", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    status = pod_status(pod_of(), {"main-0": RUNNING}, {"conditions": [other]}, 0.0, {})
    assert other in status["conditions"]


def test_a_pod_whose_init_containers_wait_is_not_initialized() -> None:
    status = pod_status(pod_of(init=1), {"main-0": Waiting(), "init-0": Waiting()}, {}, 0.0, {})
    assert conditions(status)["Initialized"][0] == "False"


def test_allocated_resources_name_claims_and_collapse_devices_of_one_cdi_id() -> None:
    raw = make_pod("pod", "claim")
    raw["spec"]["containers"][0]["resources"]["claims"] = [
        {"name": "claim"},
        {"name": "claim", "request": "gpu/best"},
        {"name": "claim", "request": "nic"},
    ]
    pod = decode_pod(raw)
    devices = (
        PreparedDevice("p", "gpu-0", ("gpu",), ("v/c=claim",)),
        PreparedDevice("p", "gpu-1", ("gpu",), ("v/c=claim",)),
        PreparedDevice("p", "bare", ("other",), ()),
    )
    info = ClaimInfo(ClaimRef("default", "claim", "uid"), devices={"gpu.example.com": devices})
    health = {"gpu-0": DeviceHealth(Health.HEALTHY), "bare": DeviceHealth(Health.UNHEALTHY, "XID 79")}
    resources = allocated_resources(
        pod,
        pod.containers[0],
        lambda namespace, name: {"claim": info}.get(name),
        lambda driver, pool, device: health.get(device, DeviceHealth()),
    )
    gpus = {"resourceID": "v/c=claim", "health": "Healthy"}
    bare = {"resourceID": "gpu.example.com/p/bare", "health": "Unhealthy", "message": "XID 79"}
    assert resources == [
        {"name": "claim:claim", "resources": [gpus, bare]},
        {"name": "claim:claim/gpu/best", "resources": [gpus]},
    ]


@pytest.mark.parametrize(
    ("change", "news"),
    [
        ({"status": {"phase": "Running"}}, False),
        ({"metadata": {"resourceVersion": "2"}}, False),
        ({"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {"annotations": {"a": "b"}}}, True),
        ({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}, True),
        ({"spec": {"nodeName": "other"}}, True),
    ],
)
def test_kubelet_looks_at_a_pod_again_when_more_than_its_status_changed(
    change: Mapping[str, Mapping[str, Any]], news: bool
) -> None:
    before = make_pod("pod")
    after = {key: {**value, **change.get(key, {})} for key, value in before.items()}
    assert differs(decode_pod(before), decode_pod(after)) is news
