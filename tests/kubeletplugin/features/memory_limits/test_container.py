# SPDX-License-Identifier: Apache-2.0
"""Limits of real containers: podman applies the claim's CDI spec, runc calls the hook program, and it asks the plugin.

The containers have cgroups like those of a pod, in the hierarchy of version 2 that the machine has.
"""

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.simulated.faults import Fault
from kubeletplugin.containers.cdi import CLAIM_KIND, SpecDirectory, claim_device, claim_spec
from kubeletplugin.features.memory_limits.server import HookServer
from tests.kubeletplugin.containers.cdi.test_runtime import run
from tests.support.limits import LimitNode, compile_program, limit_node, real_cgroups

pytestmark = pytest.mark.node

CLAIM = "9f53c0e5-9f54-647d-a53c-73174df363ba"
STATE = "/run/state"
FIRST, SECOND = "gpu-0-one", "gpu-0-two"


@pytest.fixture(scope="module", autouse=True)
def _podman_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("unshare")):
        pytest.skip("needs root, podman and unshare")
    if real_cgroups() is None:
        pytest.skip("needs cgroup version 2")
    probe = run(tmp_path_factory.mktemp("empty"), [], "true")
    if probe.returncode != 0:
        pytest.skip(f"podman cannot run a container on this machine: {probe.stderr.strip()}")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook program, which gives up after three seconds."""
    return compile_program(tmp_path_factory.mktemp("program") / "hook", seconds=3)


@pytest.fixture
def pod() -> Iterator[str]:
    """The cgroup of a pod, as a path; podman makes it."""
    kubepods = f"/kubepods-{uuid.uuid4()}"
    yield f"{kubepods}/pod{uuid.uuid4()}"
    for path in sorted(Path("/sys/fs/cgroup").glob(f"**{kubepods}/**/"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()


@pytest.fixture
def node(program: Path) -> Iterator[LimitNode]:
    """A claim with two shares of a GPU, and the program on the host."""
    with limit_node(cgroups=real_cgroups(), seconds=1.0) as made:
        made.claim(CLAIM, FIRST, 1000)
        made.claim(CLAIM, SECOND, 200)
        made.files.install(program)
        yield made


@pytest.fixture
def server(node: LimitNode) -> Iterator[HookServer]:
    """The running plugin."""
    made = HookServer(node.files.socket, node.limiter.apply)
    made.start()
    yield made
    made.stop()


def container(node: LimitNode, pod: str, command: str, *devices: str) -> "subprocess.CompletedProcess[str]":
    """Run a container of the pod."""
    specs = node.files.folder.parent / "cdi"
    edits = {device: node.files.edits(CLAIM, device) for device in (FIRST, SECOND)}
    SpecDirectory(specs, CLAIM_KIND).write(claim_spec(CLAIM, edits), CLAIM)
    state = f"--volume={node.node.root}/state:{STATE}:ro"
    devices = tuple(claim_device(CLAIM, one) for one in devices)
    return run(specs, devices, command, f"--cgroup-parent={pod}", "--cgroupns=host", state)


def looking(node: LimitNode) -> str:
    """A command that prints the limits of the cgroup of its container and of its pod, as the entrypoint finds them."""
    return f"""
own=$(sed -n 's/^0:://p' /proc/1/cgroup)
grep -o "\\"{node.cgroups}[^\\"]*\\": .[0-9]*" {STATE}/gpu-0.json | sed "s|{node.cgroups}||; s|$own|container|"
"""


def test_the_entrypoint_finds_the_limits_set(node: LimitNode, server: HookServer, pod: str) -> None:
    done = container(node, pod, looking(node), FIRST)
    assert done.stderr == ""
    assert {*done.stdout.splitlines()} == {f'"{pod}": [{1000 << 20}', f'"container": [{1000 << 20}'}


def test_two_shares_in_one_container_add_up(node: LimitNode, server: HookServer, pod: str) -> None:
    done = container(node, pod, looking(node), FIRST, SECOND)
    assert done.stderr == ""
    assert {*done.stdout.splitlines()} == {f'"{pod}": [{1200 << 20}', f'"container": [{1200 << 20}'}


def test_a_container_that_runs_again_gets_the_limit_again(node: LimitNode, server: HookServer, pod: str) -> None:
    for _ in range(2):
        done = container(node, pod, "echo started", FIRST)
        assert (done.stdout, done.stderr) == ("started\n", "")


def test_a_container_that_is_refused_does_not_start(node: LimitNode, server: HookServer, pod: str) -> None:
    node.node.inject(Fault("nvmlDeviceSetMemoryLimits_v1", seconds=1000.0))
    done = container(node, pod, "echo started", FIRST)
    node.node.clear_faults()
    assert done.returncode != 0
    assert done.stdout == ""
    assert "nvmlDeviceSetMemoryLimits_v1 for GPU-" in done.stderr


def test_without_a_plugin_the_container_does_not_start(node: LimitNode, pod: str) -> None:
    done = container(node, pod, "echo started", FIRST)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the driver's plugin did not set it within 3 s" in done.stderr


def test_a_container_outside_of_a_pod_does_not_start(node: LimitNode, server: HookServer, pod: str) -> None:
    done = container(node, pod.rpartition("/")[0], "echo started", FIRST)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "is not below the cgroup of a pod" in done.stderr
