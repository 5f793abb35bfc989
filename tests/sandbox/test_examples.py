# SPDX-License-Identifier: Apache-2.0
"""The examples, and what goes wrong around them, on a whole sandbox: real processes, sockets, files and API objects."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import StatusError
from dra_driver.kube.kinds import PODS
from dra_driver.process.mps import processes_of
from dra_driver.sandbox.demo import examples_folder
from dra_driver.sandbox.environment import Sandbox, SandboxError
from dra_driver.sandbox.kubelet import ContainerSpec
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES
from tests.support.hardware import ControlledNode
from tests.support.listing import paths_in
from tests.support.mps import connect
from tests.support.preloaded import children
from tests.support.waiting import wait_for

JSON = dict[str, Any]
EXAMPLES = examples_folder()
_READY = "GPUs are ready"
CONTROL_NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}


EXTENDED = {
    "apiVersion": CLAIMS.api_version,
    "kind": "DeviceClass",
    "metadata": {"name": "extended"},
    "spec": {
        "extendedResourceName": "nvidia.com/gpu",
        "selectors": [{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'gpu'"}}],
    },
}
EXTENDED_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "extended"},
    "spec": {
        "initContainers": [{"name": "warm-up", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 2}}}],
        "containers": [
            {"name": "first", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}},
            {"name": "none", "image": "i"},
            {"name": "last", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}},
        ],
    },
}


@pytest.fixture(scope="module")
def module_sandbox() -> Iterator[Sandbox]:
    with (
        tempfile.TemporaryDirectory(prefix="dra-") as folder,
        Sandbox(Path(folder), "h100x8-mixed", children=children) as running,
    ):
        yield running


@pytest.fixture
def sandbox(module_sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox without pods, which has none afterwards either, and on whose node nothing is left."""
    yield module_sandbox
    module_sandbox.clear()
    wait_until_nothing_is_left(module_sandbox)


def wait_until_nothing_is_left(sandbox: Sandbox) -> None:
    """A plugin that has just started answers unprepare before it has found the driver, and undoes the rest then."""
    wait_for(lambda: not leftovers(sandbox), "nothing to be left")


def leftovers(sandbox: Sandbox) -> list[str]:
    """MIG instances, CDI specs of claims, and records on the node."""
    node = sandbox.nodes[0]
    return [*mig_devices(sandbox), *(path.name for path in (*node.claim_specs(), *node.records()))]


def mig_devices(sandbox: Sandbox) -> set[str]:
    """UUIDs of the MIG devices that the hardware holds."""
    return {instance.uuid for gpu in sandbox.nodes[0].inventory().gpus for instance in gpu.mig_instances}


def restart_plugin(sandbox: Sandbox) -> None:
    """Start the plugin of the only node, and wait until kubelet has registered it."""
    sandbox.nodes[0].start_plugin()
    sandbox.nodes[0].wait_registered()


def run_example(sandbox: Sandbox, name: str) -> dict[str, JSON]:
    """Create an example and wait until its pods run; the pods by name."""
    sandbox.apply(EXAMPLES / f"{name}.yaml")
    for pod in sandbox.pods():
        sandbox.nodes[0].kubelet.wait_pod_running("default", pod["metadata"]["name"])
    return {pod["metadata"]["name"]: pod for pod in sandbox.pods()}


def container(sandbox: Sandbox, pod: str, name: str) -> ContainerSpec:
    found = sandbox.nodes[0].kubelet.container("default", pod, name)
    assert found is not None
    return found


def pipe_directory(sandbox: Sandbox, pod: str, name: str) -> Path:
    """The directory of a container's MPS daemon, on the node."""
    spec = container(sandbox, pod, name)
    inside = spec.env["CUDA_MPS_PIPE_DIRECTORY"]
    (pipe,) = (Path(mount.host_path) for mount in spec.mounts if mount.container_path == inside)
    return pipe


def gpu_nodes(spec: ContainerSpec) -> set[str]:
    """Device nodes of GPUs and MIG instances in a container, those that every container has left out."""
    return {device.path for device in spec.devices} - CONTROL_NODES


def results_of(sandbox: Sandbox, pod: str) -> dict[str, str]:
    """Device by request of a pod's only claim."""
    (claim,) = (c for c in sandbox.claims() if any(o["name"] == pod for o in c["metadata"]["ownerReferences"]))
    return {result["request"]: result["device"] for result in claim["status"]["allocation"]["devices"]["results"]}


def test_whole_gpus_go_to_one_pod_each(sandbox: Sandbox) -> None:
    pods = run_example(sandbox, "whole-gpu")
    devices = {pod: results_of(sandbox, pod)["gpu"] for pod in pods}
    assert len(set(devices.values())) == len(pods) == 2
    for pod, device in devices.items():
        (name,) = (entry["name"] for entry in pods[pod]["spec"]["containers"])
        assert gpu_nodes(container(sandbox, pod, name)) == {f"/dev/nvidia{device.removeprefix('gpu-')}"}


def test_two_containers_of_a_pod_share_one_gpu(sandbox: Sandbox) -> None:
    run_example(sandbox, "shared-gpu")
    device = results_of(sandbox, "shared-gpu")["gpu"]
    nodes = [gpu_nodes(container(sandbox, "shared-gpu", name)) for name in ("first", "second")]
    assert nodes == [{f"/dev/nvidia{device.removeprefix('gpu-')}"}] * 2


def test_containers_take_turns_with_the_interval_of_their_claim(sandbox: Sandbox) -> None:
    run_example(sandbox, "time-slicing")
    device = results_of(sandbox, "time-slicing")["ts-gpu"]
    nodes = [gpu_nodes(container(sandbox, "time-slicing", name)) for name in ("first", "second")]
    assert nodes == [{f"/dev/nvidia{device.removeprefix('gpu-')}"}] * 2
    node = sandbox.nodes[0]
    (gpu,) = (gpu for gpu in node.inventory().gpus if f"gpu-{gpu.minor}" == device)
    smi = ControlledNode(node.hardware.root).nvidia_smi
    assert smi.level(gpu.uuid) == 3
    sandbox.clear()
    wait_for(lambda: smi.level(gpu.uuid) == 0, "the interval to be put back")


@pytest.mark.parametrize("example", ["mps", "mps-mig"])
def test_containers_are_served_by_the_mps_daemon_of_their_claim(sandbox: Sandbox, example: str) -> None:
    run_example(sandbox, example)
    node = sandbox.nodes[0]
    found = []
    for name in ("first", "second"):
        mounts = container(sandbox, example, name).mounts
        assert any(mount.container_path == "/dev/shm" for mount in mounts)
        found.append(connect(pipe_directory(sandbox, example, name)))
    assert found[0] == found[1]
    names = results_of(sandbox, example).values()
    gpus = {gpu.uuid for gpu in node.inventory().gpus if f"gpu-{gpu.minor}" in names}
    (gpu,) = gpus or mig_devices(sandbox)
    limits = {gpu: "10240M"} if example == "mps" else {gpu: "4096M", "0": "4096M"}
    assert found[0]["memory"] == limits
    assert found[0]["percentage"] == (50.0 if example == "mps" else 100.0)
    sandbox.clear()
    folder = node.kubelet_root / "plugins/gpu.nvidia.com/mps"
    wait_for(lambda: not any(path.is_dir() for path in paths_in(folder, "s*")), "the daemon to end")
    assert processes_of(folder) == []
    assert list(node.shared_memory.iterdir()) == []


def test_four_mig_slices_of_one_gpu_go_to_four_containers(sandbox: Sandbox) -> None:
    run_example(sandbox, "mig-slices")
    devices = results_of(sandbox, "mig-slices")
    (gpu,) = {device.split("-mig-")[0] for device in devices.values()}
    (board,) = (gpu for gpu in sandbox.nodes[0].inventory().gpus if gpu.mig_instances)
    assert f"gpu-{board.minor}" == gpu
    assert sorted(instance.device.placement.size for instance in board.mig_instances) == [1, 1, 2, 4]
    access = []
    for name in devices:
        nodes = gpu_nodes(container(sandbox, "mig-slices", name))
        assert f"/dev/nvidia{board.minor}" in nodes
        caps = nodes - {f"/dev/nvidia{board.minor}"}
        assert len(caps) == 2
        assert all(path.startswith("/dev/nvidia-caps/nvidia-cap") for path in caps)
        access += sorted(caps)
    assert len(set(access)) == 8, "each container can reach its own instances only"


def test_an_extended_resource_is_prepared_like_a_claim(sandbox: Sandbox) -> None:
    sandbox.client.create(CLASSES, EXTENDED)
    try:
        sandbox.client.create(PODS, EXTENDED_POD, "default")
        sandbox.nodes[0].kubelet.wait_pod_running("default", "extended")
        devices = results_of(sandbox, "extended")
        minor = {request: device.removeprefix("gpu-") for request, device in devices.items()}
        assert set(minor) == {"container-1-request-0", "container-3-request-0"}
        assert gpu_nodes(container(sandbox, "extended", "first")) == {f"/dev/nvidia{minor['container-1-request-0']}"}
        assert container(sandbox, "extended", "none").devices == ()
        assert gpu_nodes(container(sandbox, "extended", "last")) == {f"/dev/nvidia{minor['container-3-request-0']}"}
        assert gpu_nodes(container(sandbox, "extended", "warm-up")) == {
            f"/dev/nvidia{number}" for number in minor.values()
        }
        assert len(sandbox.nodes[0].claim_specs()) == 1
        sandbox.clear()
        assert leftovers(sandbox) == []
    finally:
        sandbox.client.delete(CLASSES, "extended")


def test_containers_get_libraries_and_are_not_served_by_the_legacy_hook(sandbox: Sandbox) -> None:
    run_example(sandbox, "shared-gpu")
    spec = container(sandbox, "shared-gpu", "first")
    assert spec.env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {device.path for device in spec.devices} >= {"/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert any(
        mount.container_path.endswith("libcuda.so.1") or "libcuda.so" in mount.container_path for mount in spec.mounts
    )


def test_a_pod_for_which_nothing_is_left_waits_until_something_is(sandbox: Sandbox) -> None:
    run_example(sandbox, "whole-gpu")
    run_example(sandbox, "shared-gpu")
    template = EXAMPLES / "whole-gpu.yaml"
    text = template.read_text(encoding="utf-8")
    pod = text[text.index("apiVersion: v1\n") :].split("---")[0]
    for index in range(2, 4):
        path = sandbox.folder / f"more-{index}.yaml"
        path.write_text(pod.replace("whole-gpu-0", f"whole-gpu-{index}"), encoding="utf-8")
        sandbox.apply(path)
    sandbox.nodes[0].kubelet.wait_pod_running("default", "whole-gpu-2")

    def reason() -> str:
        conditions = sandbox.client.get(PODS, "whole-gpu-3", "default").get("status", {}).get("conditions") or []
        return next(
            (condition.get("message", "") for condition in conditions if condition["type"] == "PodScheduled"), ""
        )

    assert "0/1 nodes are available" in wait_for(reason, "the verdict on the fifth pod")
    sandbox.client.delete(PODS, "shared-gpu", "default")
    sandbox.nodes[0].kubelet.wait_pod_running("default", "whole-gpu-3")


def test_a_plugin_killed_while_pods_run_takes_up_where_it_was(sandbox: Sandbox) -> None:
    run_example(sandbox, "mig-slices")
    run_example(sandbox, "mps")
    node = sandbox.nodes[0]
    before = mig_devices(sandbox)
    specs = {path.name: path.read_bytes() for path in node.claim_specs()}
    pipe = pipe_directory(sandbox, "mps", "first")
    served, recoveries = connect(pipe), node.log("kubeletplugin").count(_READY)
    node.kill("kubeletplugin")
    assert connect(pipe) == served
    restart_plugin(sandbox)
    wait_for(lambda: node.log("kubeletplugin").count(_READY) > recoveries, "the recovery")
    assert connect(pipe) == served
    assert mig_devices(sandbox) == before
    assert {path.name: path.read_bytes() for path in node.claim_specs()} == specs


def test_pods_deleted_while_the_plugin_is_dead_are_cleaned_up_when_it_is_back(sandbox: Sandbox) -> None:
    run_example(sandbox, "mig-slices")
    sandbox.nodes[0].kill("kubeletplugin")
    sandbox.client.delete(PODS, "mig-slices", "default")
    sandbox.nodes[0].kubelet.wait_event("FailedUnprepareDynamicResources")
    restart_plugin(sandbox)
    what = "the pod and its claim to be gone"
    sandbox.nodes[0].kubelet.wait(lambda: not sandbox.pods() and not sandbox.claims(), what=what)
    wait_until_nothing_is_left(sandbox)


def test_a_terminated_plugin_leaves_pods_running_and_the_sandbox_tells_that_it_has_ended(sandbox: Sandbox) -> None:
    run_example(sandbox, "mig-slices")
    node = sandbox.nodes[0]
    os.kill(pid := node.processes["kubeletplugin"].pid, signal.SIGTERM)
    assert sandbox.wait().startswith(f"kubeletplugin of node-1 (process {pid}) ended with code 0: ")
    node.terminate("kubeletplugin")
    assert len(node.claim_specs()) == 1
    restart_plugin(sandbox)


def test_a_killed_controller_is_told_and_changes_nothing_when_it_is_back(sandbox: Sandbox) -> None:
    before = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in sandbox.slices()}
    node = sandbox.nodes[0]
    os.kill(pid := node.processes["controller"].pid, signal.SIGKILL)
    assert sandbox.wait().startswith(f"controller of node-1 (process {pid}) was ended by signal 9 (Killed)")
    node.terminate("controller")
    node.start_controller()
    victim = sorted(before)[0]
    sandbox.client.delete(SLICES, victim)
    wait_for(lambda: victim in {item["metadata"]["name"] for item in sandbox.slices()}, "the new controller to work")
    after = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in sandbox.slices()}
    assert {name for name in before if after[name] != before[name]} == {victim}


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("device.attributes['gpu.nvidia.com'].type = 'gpu'", "syntax error"),
        ("device.attribute['gpu.nvidia.com'].type == 'gpu'", "attribute"),
        ("device.driver", "must evaluate to bool"),
    ],
)
def test_a_broken_selector_is_refused_by_the_api_server(sandbox: Sandbox, expression: str, complaint: str) -> None:
    request = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    claim = {
        "apiVersion": CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": "broken"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}},
    }
    with pytest.raises(StatusError, match=complaint) as refused:
        sandbox.client.create(CLAIMS, claim, "default")
    assert refused.value.status == 422


def test_claims_of_a_stopped_sandbox_are_unprepared_by_the_next_sandbox(short_path: Path) -> None:
    """The API objects are gone with the first one, but kubelet remembers whose claims it had prepared."""
    with Sandbox(short_path, "h100x8-mixed", children=children) as first:
        run_example(first, "mig-slices")
    assert leftovers(first) != []
    with Sandbox(short_path, "h100x8-mixed", children=children) as second:
        second.nodes[0].kubelet.wait(lambda: not leftovers(second), what="the old claims to be unprepared")


def test_logs_are_structured_and_without_errors(sandbox: Sandbox) -> None:
    run_example(sandbox, "mig-slices")
    for name in ("controller", "kubeletplugin"):
        assert "Traceback" not in sandbox.nodes[0].log(name)


def test_a_process_that_cannot_start_ends_the_sandbox_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)  # too long for a socket
    with pytest.raises(SandboxError, match="choose a shorter folder"), Sandbox(folder, "a30x4", children=children):
        pass
