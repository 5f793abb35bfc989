# SPDX-License-Identifier: Apache-2.0
"""kind takes the configuration that `dra-sandbox kind-config` prints, and the commands of docs/how-to/kind.md.

kind runs until it needs Docker, which it is not given: by then it has read its flags and its configuration, and
nothing was made. It is used where it is on PATH. The rules of its configuration are those of pkg/apis/config/v1alpha4
(commit fed2688).
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_driver.sandbox.main import sandbox
from tests.kubeletplugin.containers.cdi.test_runtime import podman

from .commands import Command, given_to

KIND = [step for step in given_to(__name__) if step.text.startswith("kind ")]


def printed(*arguments: str) -> str:
    """What the command prints."""
    return CliRunner().invoke(sandbox, ["kind-config", *arguments], catch_exceptions=False).output


def cluster(*arguments: str) -> Any:
    return yaml.safe_load(printed(*arguments))


def without_docker(command: str, folder: Path, config: str) -> str:
    """What kind says when no Docker answers."""
    if shutil.which("kind") is None:
        pytest.skip("kind is not on PATH")
    (folder / "kind.yaml").write_text(config, encoding="utf-8")
    nobody = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "KIND_EXPERIMENTAL_PROVIDER": "docker"}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env={**os.environ, **nobody},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("command", KIND, ids=str)
def test_kind_understands_the_command_and_then_asks_docker(command: Command, tmp_path: Path) -> None:
    asks = {"create": "failed to get docker info", "load": "not present locally"}[command.parts[0][1]]
    assert asks in without_docker(command.text, tmp_path, printed())


def test_kind_refuses_an_unknown_field(tmp_path: Path) -> None:
    wrong = printed().replace("extraMounts:", "mounts:")
    assert "field mounts not found" in without_docker("kind create cluster --config kind.yaml", tmp_path, wrong)


@pytest.mark.parametrize("gpus", ["all", "none"])
def test_the_cluster_serves_what_the_scheduler_waits_for_with_its_gates(gpus: str) -> None:
    """Up to Kubernetes 1.34, DRADeviceTaints makes the scheduler list DeviceTaintRules of v1alpha3."""
    found = cluster("--gpus", gpus)
    assert (found["kind"], found["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    assert found["featureGates"]["DRADeviceTaints"] is True
    assert found["runtimeConfig"] == {"resource.k8s.io/v1alpha3": "true"}


def test_kind_worker_mounts_the_host_only_with_gpus() -> None:
    plane, worker = cluster()["nodes"]
    assert plane == {"role": "control-plane"}
    assert worker["extraMounts"] == [{"hostPath": "/", "containerPath": "/host", "readOnly": True}]
    assert not any("extraMounts" in node for node in cluster("--gpus", "none")["nodes"])
    assert cluster("--name", "other")["name"] == "other"


def test_podman_gives_a_node_of_kind_the_devices_and_the_files_of_the_host(tmp_path: Path) -> None:
    """With the options that kind's providers make of the configuration: privileged, and a volume."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("podman is not on PATH, or this user is not root")
    (mount,) = cluster()["nodes"][1]["extraMounts"]
    volume = f"--volume={mount['hostPath']}:{mount['containerPath']}:ro"
    script = "stat -c %t:%T /dev/null /host/dev/null; touch /host/x 2>/dev/null || echo read-only"
    command = [*podman(tmp_path), "--privileged", volume, "--rootfs", "/:O", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0 and not done.stdout:
        pytest.skip(f"podman cannot run a container on this machine: {done.stderr.strip()}")
    assert done.stdout.split() == ["1:3", "1:3", "read-only"]
