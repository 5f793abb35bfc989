# SPDX-License-Identifier: Apache-2.0
"""The lines for changes between two states of the GPUs."""

from typing import Any

from dra_driver.dryrun.gpus.changes import changes
from dra_driver.dryrun.gpus.collect import used_nodes
from dra_driver.dryrun.gpus.model import UsedNode
from dra_driver.kube.resource import ResourceClaim
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.conftest import gpu, slice_of

from .test_collect import holding, pod

XID = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


def state(*claims: ResourceClaim, gpus: int = 1, **more: Any) -> list[UsedNode]:
    devices = [{**gpu(f"gpu-{number}"), **more} for number in range(gpus)]
    return used_nodes([decode(slice_of("node-1", *devices)), *claims], [pod(kind="Job", name="train")], Features())


def test_equal_states_have_no_changes() -> None:
    claim = holding("node-1", "gpu-0")
    assert list(changes(state(claim), state(claim))) == []


def test_a_use_that_begins_and_one_that_ends_are_told_with_pod_and_owner() -> None:
    claim = holding("node-1", "gpu-0")
    user = "used by pod ns/pod (Job train) with claim ns/claim"
    assert list(changes(state(), state(claim))) == [f"node-1/gpu-0: whole is {user}"]
    assert list(changes(state(claim), state())) == [f"node-1/gpu-0: whole is no longer {user}"]


def test_a_taint_that_comes_and_goes_is_told() -> None:
    text = "health: gpu.nvidia.com/xid=79:NoSchedule"
    assert list(changes(state(), state(taints=[XID]))) == [f"node-1/gpu-0: taint {text}"]
    assert list(changes(state(taints=[XID]), state())) == [f"node-1/gpu-0: the taint {text} is gone"]


def test_a_gpu_that_comes_and_goes_is_told() -> None:
    assert list(changes(state(), state(gpus=2))) == ["node-1/gpu-1: is published (NVIDIA H100 80GB HBM3)"]
    assert list(changes(state(gpus=2), state())) == ["node-1/gpu-1: is no longer published"]
