# SPDX-License-Identifier: Apache-2.0
"""The rules of NVIDIA's GPU Operator 26.7 and k8s-driver-manager 0.12, restated, and what our chart does under them."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from dra_driver.dryrun.inventory import CLASSES
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy
from dra_driver.kube.resource import AllocationResult, Node, ObjectMeta, ResourceClaim, ResourceClaimTemplate
from dra_driver.kube.resource.codec import decode
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.scheduler.allocator import Cluster, allocate
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.claims import allocated_claim
from tests.support.nodes import make_node
from tests.support.plugin import HARDWARE
from tests.support.waiting import wait_for

from .rendering import CHART, JSON, VALUES, find, merged, render

OPERATOR: JSON = yaml.load((CHART / "values-gpu-operator.yaml").read_bytes(), yaml.CSafeLoader)
CLIENT, PLUGIN = "nvidia.com/gpu.deploy.client", {"app": "nvidia-dra-driver-kubelet-plugin"}
GPU_NODE = {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true", CLIENT: "true"}
PAUSED = "paused-for-driver-upgrade"


def on_nodes(values: JSON) -> Iterator[JSON]:
    """The pod templates of the DaemonSets."""
    for one in render(merged(values, OPERATOR)):
        if one["kind"] == "DaemonSet":
            yield one["spec"]["template"]


@pytest.mark.parametrize(
    "values", [{}, {"mps": {"enabled": True}}, VALUES["cleanup"]], ids=["plugin", "mps", "cleanup"]
)
def test_pods_leave_a_node_while_its_driver_is_replaced(values: JSON) -> None:
    """The manager changes the label's value and waits for pods of DaemonSets, in any namespace, that select the key."""
    for template in on_nodes(values):
        selector = template["spec"]["nodeSelector"]
        assert selector.items() <= GPU_NODE.items()
        assert CLIENT in selector
        assert not selector.items() <= {**GPU_NODE, CLIENT: PAUSED}.items()


def test_the_manager_finds_the_plugin_by_its_label() -> None:
    (template,) = on_nodes({})
    assert PLUGIN.items() <= template["metadata"]["labels"].items()


def ready(folder: Path, root: str = "/run/nvidia/driver") -> tuple[list[str], dict[str, str]]:
    """The command of the init container and its environment, with the validator's folder at `folder`."""
    file = {"kubeletPlugin": {"driverReadyFile": str(folder / "driver-ready")}, "nvidiaDriverRoot": root}
    pod = find(render(merged(OPERATOR, file)), "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    (mount,) = container["volumeMounts"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    assert mount["mountPath"] == volume["hostPath"]["path"] == str(folder)
    return container["command"], {one["name"]: one["value"] for one in container["env"]}


def validated(folder: Path, root: str) -> None:
    """What the validator writes when the driver works, at once."""
    lines = ("IS_HOST_DRIVER=false", f"NVIDIA_DRIVER_ROOT={root}", "DRIVER_ROOT_CTR_PATH=/driver-root")
    (folder / ".new").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / ".new").rename(folder / "driver-ready")


def test_the_pods_start_when_the_driver_was_validated(tmp_path: Path) -> None:
    command, environment = ready(tmp_path)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"waiting for {tmp_path}/driver-ready" in process.stdout.readline()
        validated(tmp_path, "/run/nvidia/driver")
        wait_for(lambda: process.poll() is not None, "the init container")
        assert process.returncode == 0


def test_a_driver_in_another_folder_is_an_error(tmp_path: Path) -> None:
    validated(tmp_path, "/")
    command, environment = ready(tmp_path)
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "driver of this node is in /, and the chart's nvidiaDriverRoot is /run/nvidia/driver" in found.stderr


ADMIN = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: operand, namespace: gpu-operator}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, adminAccess: true, %s}}]}}}
"""


def admin_allocations(folder: Path, mode: str, policy: NodePolicy) -> Sequence[AllocationResult]:
    """What the scheduler allocates to such a claim while gpu-0 is in use."""
    slices = node_slices("node-a", "uid", make_node(folder / "node", HARDWARE).describe(policy), SliceFeatures())
    template = decode(yaml.safe_load(ADMIN % mode))
    assert isinstance(template, ResourceClaimTemplate)
    claim = ResourceClaim(ObjectMeta(name="operand", namespace="gpu-operator"), template.spec)
    held = allocated_claim("held", ["gpu-0"])
    cluster = Cluster(tuple(slices), CLASSES, (Node(ObjectMeta(name="node-a")),), (held,))
    return allocate(cluster, [claim], "node-a").allocations


def test_in_a_pool_with_counters_an_operand_gets_no_gpu_that_is_in_use(tmp_path: Path) -> None:
    """kubernetes/kubernetes#140729: the scheduler counts the counters of a request with admin access, too."""
    assert admin_allocations(tmp_path, "allocationMode: All", NodePolicy()) == ()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("allocationMode: All", ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]),
        ("allocationMode: ExactCount, count: 1", ["gpu-0"]),
    ],
    ids=["dcgm", "validator"],
)
def test_claims_of_the_operands_get_gpus_that_are_in_use(tmp_path: Path, mode: str, expected: list[str]) -> None:
    """Those of a GPUCluster's DCGM pods and validator, which have admin access."""
    plugin = Plugin(tmp_path, ApiServer())
    user = plugin.api.add(["gpu-0"])
    plugin.engine.prepare(user)
    (allocation,) = admin_allocations(tmp_path, mode, NodePolicy((GpuRule(mig=MigPolicy.STATIC),)))
    assert [(one.device, one.admin_access) for one in allocation.results] == [(name, True) for name in expected]
    operand = plugin.api.add(expected, adminAccess=True)
    plugin.engine.prepare(operand)
    assert plugin.nodes_of(operand) == {name: [f"/dev/nvidia{name.removeprefix('gpu-')}"] for name in expected}
    plugin.engine.unprepare(operand)
    assert plugin.nodes_of(user) == {"gpu-0": ["/dev/nvidia0"]}
