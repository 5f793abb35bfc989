# SPDX-License-Identifier: Apache-2.0
"""docs/install.md prepares a machine for kind: nvidia-ctk writes what the page says, kind takes our configuration.

nvidia-ctk runs in a mount namespace with an /etc of its own. kind runs until it needs Docker, which it is not given:
by then it has read its flags and its configuration, and nothing was made. Both are used where they are on PATH.
"""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from .commands import ROOT, Command
from .ledger import run_by

TOOLKIT = [step for step in run_by(__name__) if "nvidia-ctk" in step.text]
KIND = [step for step in run_by(__name__) if step.text.startswith("kind ")]
WITH_OWN_ETC = """\
mount --types tmpfs tmpfs /etc
mkdir /etc/docker
echo "$DAEMON" > /etc/docker/daemon.json
sudo() { "$@"; }
eval "$COMMANDS"
cp --recursive /etc/. "$RESULT"
"""
DAEMON = {"log-driver": "local", "runtimes": {"crun": {"path": "/usr/bin/crun"}}}
"""What the machine's owner has already set for Docker."""


@pytest.fixture(scope="module")
def etc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/etc of a machine on which the commands ran in the page's order."""
    for name in ("nvidia-ctk", "unshare"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on PATH")
    if os.geteuid() != 0:
        pytest.skip("an /etc of one's own takes root")
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode != 0:
        pytest.skip("this machine gives no mount namespace")
    result = tmp_path_factory.mktemp("etc")
    script = "\n".join(step.text for step in TOOLKIT)
    subprocess.run(
        ["unshare", "--mount", "bash", "-euc", WITH_OWN_ETC],
        env={**os.environ, "COMMANDS": script, "DAEMON": json.dumps(DAEMON), "RESULT": str(result)},
        check=True,
        timeout=60,
    )
    return result


def test_nvidias_is_dockers_default_runtime_with_cdi_and_what_was_set_stays(etc: Path) -> None:
    daemon = json.loads((etc / "docker/daemon.json").read_text(encoding="utf-8"))
    assert daemon["default-runtime"] == "nvidia"
    assert daemon["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert daemon["features"] == {"cdi": True}
    assert daemon["log-driver"] == DAEMON["log-driver"]
    assert set(daemon["runtimes"]) == {"crun", "nvidia"}


def test_nvidias_runtime_takes_requests_for_devices_from_mounts(etc: Path) -> None:
    settings = tomllib.loads((etc / "nvidia-container-runtime/config.toml").read_text(encoding="utf-8"))
    assert settings["accept-nvidia-visible-devices-as-volume-mounts"] is True


def without_docker(command: str) -> str:
    """What kind says when no Docker answers."""
    if shutil.which("kind") is None:
        pytest.skip("kind is not on PATH")
    nobody = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "KIND_EXPERIMENTAL_PROVIDER": "docker"}
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=ROOT,
        env={**os.environ, **nobody},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("command", KIND, ids=str)
def test_kind_understands_the_command_and_then_asks_docker(command: Command) -> None:
    asks = {"create": "failed to get docker info", "load": "not present locally"}[command.parts[0][1]]
    assert asks in without_docker(command.text)


def test_the_cluster_serves_what_the_scheduler_waits_for_with_its_gates() -> None:
    """Up to Kubernetes 1.34, DRADeviceTaints makes the scheduler list DeviceTaintRules of v1alpha3."""
    cluster = yaml.safe_load((ROOT / "docs/kind.yaml").read_text(encoding="utf-8"))
    assert cluster["featureGates"]["DRADeviceTaints"] is True
    assert cluster["runtimeConfig"] == {"resource.k8s.io/v1alpha3": "true"}


def test_kind_would_say_what_it_does_not_understand(tmp_path: Path) -> None:
    text = (ROOT / "docs/kind.yaml").read_text(encoding="utf-8")
    wrong = tmp_path / "kind.yaml"
    wrong.write_text(text.replace("extraMounts:", "mounts:"), encoding="utf-8")
    assert "field mounts not found" in without_docker(f"kind create cluster --config {wrong}")
