# SPDX-License-Identifier: Apache-2.0
"""The pod of dra-mps: what it uses is mounted where the plugin, containers and cleanup mean it, and it works so."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from dra_driver.errors import MpsError
from dra_driver.names import DRIVER_NAME
from dra_driver.process.mps import processes_of
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.memory import shared_memory_folder
from kubeletplugin.features.mps.options import shared_memory_in
from kubeletplugin.features.mps.shares import MpsShare, ShareFiles, ShareName
from tests.kubeletplugin.containers.cdi.test_runtime import podman, run
from tests.support.mps import connect
from tests.support.nodes import TestNode, make_node
from tests.support.waiting import wait_for

from .rendering import JSON, VALUES, find, merged, render
from .workloads import paths

PYTHON = (sys.executable, "-m", "kubeletplugin.features.mps.main")
CHECKOUT = Path(__file__).parents[2]
REAL: JSON = {"mps": {"enabled": True}}
SIMULATED: JSON = {**REAL, "simulatedNode": "l40sx4"}


def pod_of(values: JSON, name: str) -> tuple[JSON, JSON]:
    """The pod of a DaemonSet, and its only container that runs a command of ours."""
    pod = find(render(values), "DaemonSet", name)["spec"]["template"]["spec"]
    (container,) = (
        one for one in [*pod.get("initContainers", ()), *pod["containers"]] if one["command"][0].startswith("dra-")
    )
    return pod, container


def mount_of(container: JSON, path: str) -> JSON:
    """The mount with a path: the deepest one."""
    found = [one for one in container["volumeMounts"] if PurePosixPath(path).is_relative_to(one["mountPath"])]
    assert found, f"{path} is not mounted"
    return dict(max(found, key=lambda one: len(one["mountPath"])))


def told(container: JSON) -> dict[str, str]:
    """The environment."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


@pytest.mark.parametrize("kind", ["mps", "cleanup"])
@pytest.mark.parametrize("values", [{}, {"simulatedNode": "a30x4"}, VALUES["driver-container"]])
def test_folders_for_containers_have_the_path_that_they_have_on_the_node(values: JSON, kind: str) -> None:
    """The plugin writes paths of the node into CDI specs, and dra-mps makes what is there."""
    pod, container = pod_of(merged(values, {"mps": {"enabled": True}, "cleanup": {"enabled": kind == "cleanup"}}), kind)
    hosts = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"]}
    environment = told(container)
    assert "SHARED_MEMORY_DIRECTORY_PATH" not in environment  # the default is the same in all commands
    mount = mount_of(container, f"{environment['KUBELET_PLUGINS_DIRECTORY_PATH']}/{DRIVER_NAME}/mps")
    assert hosts[mount["name"]] == mount["mountPath"]
    assert not mount.get("readOnly")


def test_shared_memory_is_by_default_where_only_root_can_create_names() -> None:
    folder = Path("/var/lib/kubelet/plugins/gpu.nvidia.com/mps")
    assert shared_memory_in(folder, None) == folder / "memory"


@pytest.mark.parametrize(
    ("values", "propagation"),
    [
        ({}, "Bidirectional"),
        ({"simulatedNode": "a30x4"}, None),
        ({"mps": {"securityContext": {"privileged": True}}}, "Bidirectional"),
        ({"mps": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}}, None),
    ],
    ids=["by default", "a simulated node", "a privileged context", "another context"],
)
def test_mounts_of_shared_memory_are_visible_on_the_node(values: JSON, propagation: str | None) -> None:
    _, container = pod_of(merged({"mps": {"enabled": True}}, values), "mps")
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "data")
    assert mount.get("mountPropagation") == propagation


@pytest.mark.parametrize("kind", ["mps", "cleanup"])
def test_no_pod_has_the_shared_memory_of_the_node(kind: str) -> None:
    pod, _ = pod_of({"mps": {"enabled": True}, "cleanup": {"enabled": kind == "cleanup"}}, kind)
    assert not [volume for volume in pod["volumes"] if volume["hostPath"]["path"].startswith("/dev")]


def test_the_driver_is_read_only_and_follows_the_node() -> None:
    """A driver container mounts the driver after this pod has started."""
    pod, container = pod_of({"mps": {"enabled": True}, "nvidiaDriverRoot": "/run/nvidia/driver"}, "mps")
    mount = mount_of(container, "/driver-root")
    assert (mount["readOnly"], mount["mountPropagation"]) == (True, "HostToContainer")
    assert "DRIVER_ROOT_CTR_PATH" not in told(container)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    assert volume["hostPath"]["path"] == "/run/nvidia/driver"
    assert pod["hostPID"] is True


# In a real container


class Node:
    """A node on which the pod of dra-mps runs: podman makes the container that the chart describes."""

    def __init__(self, folder: Path, values: JSON) -> None:
        self.state = folder / "plugins" / DRIVER_NAME
        simulated = "simulatedNode" in values
        hardware = self.state / "simulated" if simulated else folder / "node"
        self.hardware: TestNode = make_node(hardware, "l40sx4")
        driver = {} if simulated else {"nvidiaDriverRoot": str(self.hardware.node.driver_root)}
        self.pod, self.container = pod_of(merged(values, {**paths(folder), **driver}), "mps")
        self.files = ShareFiles(self.state / "mps")
        self.client = SupervisorClient(self.files.folder)
        self.log = folder / "log"
        (folder / "no-specs").mkdir()
        self._more = [] if simulated else [f"--volume={hardware}/state:/state"]  # the stand-in's own

    def options(self) -> list[str]:
        """The options of podman for this container."""
        hosts = {one["name"]: Path(one["hostPath"]["path"]) for one in self.pod["volumes"]}
        context = self.container["securityContext"]
        found = ["--pid=host"] if self.pod.get("hostPID") else []
        found += ["--read-only", "--read-only-tmpfs=false"] if context["readOnlyRootFilesystem"] else []
        found += ["--privileged"] if context.get("privileged") else []
        for name, values in context.get("capabilities", {}).items():
            found += [f"--cap-{name}={value}" for value in values]
        for mount in self.container["volumeMounts"]:
            hosts[mount["name"]].mkdir(parents=True, exist_ok=True)
            kind = "ro" if mount.get("readOnly") else "rw"
            kind += {"HostToContainer": ",rslave", "Bidirectional": ",rshared"}.get(mount.get("mountPropagation"), "")
            found.append(f"--volume={hosts[mount['name']]}:{mount['mountPath']}:{kind}")
        return [*found, *(f"--env={name}={value}" for name, value in told(self.container).items()), *self._more]

    @contextmanager
    def running(self) -> Iterator[Path]:
        """Run the container, and end it as kubelet does. Gives the root of the files of the node, with its mounts."""
        # The test's folder is hidden in the container's root, which is this machine's, unless a volume has it.
        hidden = ["--mount=type=tmpfs,destination=/var/tmp,notmpcopyup", f"--env=PYTHONPATH={CHECKOUT}"]
        unshare, *rest = podman(self.log.parent / "no-specs")
        command = [unshare, "--propagation=shared", *rest, *hidden, *self.options(), "--rootfs", "/:O", *PYTHON]
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(lambda: process.poll() is not None or self._answers(), "dra-mps")
            assert process.poll() is None, self.log.read_text()
            yield Path(f"/proc/{process.pid}/root")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            self.client.statuses()
        except MpsError:
            return False
        return True


@pytest.mark.parametrize("values", [REAL, SIMULATED], ids=["a driver on the node", "a simulated node"])
def test_the_pod_serves_a_claim_and_leaves_nothing(values: JSON) -> None:
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("unshare")):
        pytest.skip("needs root, podman and unshare")
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/var/tmp") as name:
        node = Node(Path(name), values)
        gpu = node.hardware.nvml.uuid(node.hardware.nvml.device_by_index(0))
        share = ShareName(f"s{uuid.uuid4().hex[:10]}", gpu, "a")
        memory = shared_memory_folder(shared_memory_in(node.files.folder, None), share.server)
        pipe = node.files.folder / share.server / "pipe"
        probe = run(node.log.parent / "no-specs", [], "true")
        if probe.returncode != 0:
            pytest.skip(f"podman cannot run a container on this machine: {probe.stderr.strip()}")
        with node.running() as root_of_node:
            shown = root_of_node / memory.relative_to("/")
            node.files.put(share, MpsShare(2, (gpu,), 50))
            node.client.settle(share.server)
            assert connect(pipe)["percentage"] == 50.0
            assert os.path.ismount(shown) == ("simulatedNode" not in values)
            assert stat.S_IMODE(shown.stat().st_mode) == 0o1777
            if "simulatedNode" not in values:  # with mounts of its own, a daemon sees what its clients see
                daemon, server = (Path(f"/proc/{pid}/root") for pid in processes_of(node.files.folder))
                for root in (daemon, server):
                    inside = root / f"run/nvidia-mps/{share.server}/pipe/control"
                    assert inside.samefile(pipe / "control")  # a second name of the same socket
                    assert not inside.parent.samefile(pipe)
                    assert (root / "dev/shm").samefile(shown)
            node.files.remove(share)
            node.client.settle(share.server)
            assert [path for path in (memory, shown, pipe) if path.exists()] == []
            node.files.put(share, MpsShare(2, (gpu,), 50, shared_memory=False))
            node.client.settle(share.server)
        assert processes_of(node.files.folder) == []
