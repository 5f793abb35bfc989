# SPDX-License-Identifier: Apache-2.0
"""dra-controller as a process: how it starts, ends and complains."""

import contextlib
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from tests.support.apiserver import SLICES
from tests.support.hardware import ControlledNode
from tests.support.preloaded import run, start
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A controller process; its log is folder/log."""
    command = [sys.executable, "-m", "controller.main", "--simulated-root", str(folder / "node"), *arguments]
    with (folder / "log").open("ab") as log, start(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()


def log_of(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8")


def node_with_slices(client: ApiClient) -> str:
    name = f"node-{uuid.uuid4().hex[:8]}"
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    return name


def test_process_publishes_and_ends_cleanly_after_sigterm(client: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    node = node_with_slices(client)
    arguments = ("--node-name", node, "--kubeconfig", str(kubeconfig), "--simulated-node", "h100x8-mixed")
    labels = tmp_path / "labels"
    with running(tmp_path, *arguments, "--node-feature-file", str(labels)) as process:
        wait_for(lambda: client.list(SLICES, field_selector=f"spec.nodeName={node}").items, "slices")
        wait_for(lambda: labels.exists() and "nvidia.com/gpu.count=8\n" in labels.read_text(encoding="utf-8"), "labels")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not labels.exists()
    assert "stopped" in log_of(tmp_path)


def test_after_a_kill_the_next_one_writes_only_what_is_missing(
    client: ApiClient, kubeconfig: Path, tmp_path: Path
) -> None:
    node = node_with_slices(client)
    arguments = ("--node-name", node, "--kubeconfig", str(kubeconfig), "--simulated-node", "h100x8-mixed")

    def versions() -> dict[str, str]:
        items = client.list(SLICES, field_selector=f"spec.nodeName={node}").items
        return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in items}

    with running(tmp_path, *arguments):
        wait_for(lambda: "published slices" in log_of(tmp_path), "the slices")
    before = versions()
    with running(tmp_path, *arguments):
        victim = sorted(before)[0]
        client.delete(SLICES, victim)
        wait_for(lambda: victim in versions(), "the second one to be at work")
        after = versions()
    assert {name for name in before if after[name] != before[name]} == {victim}


def test_flags_are_read_from_the_environment_too(client: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    node = node_with_slices(client)
    environment = {"NODE_NAME": node, "KUBECONFIG": str(kubeconfig), "SIMULATED_NODE": "a30x4", "LOG_FORMAT": "json"}
    command = [sys.executable, "-m", "controller.main", "--simulated-root", str(tmp_path)]
    with (
        (tmp_path / "log").open("wb") as log,
        start(command, stderr=log, env=environment) as process,
    ):
        wait_for(lambda: client.list(SLICES, field_selector=f"spec.nodeName={node}").items, "slices")
        process.send_signal(signal.SIGTERM)
    assert all(line.startswith("{") for line in log_of(tmp_path).splitlines())


def test_changes_of_the_hardware_and_the_policy_are_published_and_counted(
    client: ApiClient, kubeconfig: Path, tmp_path: Path
) -> None:
    name = node_with_slices(client)
    policy = tmp_path / "policy.yaml"
    policy.touch()
    flags = {
        "node-name": name,
        "kubeconfig": kubeconfig,
        "simulated-node": "h100x8-mixed",
        "policy-file": policy,
        "kubelet-plugins-directory-path": tmp_path / "plugins",
        "poll-interval": 1,
        "http-endpoint": "127.0.0.1:0",
    }

    def devices() -> set[str]:
        items = client.list(SLICES, field_selector=f"spec.nodeName={name}").items
        return {device["name"] for one in items for device in one["spec"].get("devices") or []}

    def tainted() -> set[str]:
        items = client.list(SLICES, field_selector=f"spec.nodeName={name}").items
        found = (device for one in items for device in one["spec"].get("devices") or [])
        return {device["name"] for device in found if device.get("taints")}

    with running(tmp_path, *(f"--{flag}={value}" for flag, value in flags.items())):
        wait_for(lambda: {"gpu-0", "gpu-1"} <= devices(), "the slices")
        node = ControlledNode(tmp_path / "node")
        node.unplug(0)
        wait_for(lambda: tainted() == {"gpu-0"}, "the GPU to be missed")
        node.plug(0)
        wait_for(lambda: not tainted(), "the GPU to be seen again")
        nvml = node.nvml()
        nvml.initialize()
        assert nvml.set_mig_mode(nvml.device_by_index(1), True) is None
        wait_for(lambda: "gpu-1" not in devices() and "gpu-1-mig-7g80gb-0-0" in devices(), "MIG devices")
        policy.write_text("gpus: [{match: {indexes: [2]}, publish: false}]")
        wait_for(lambda: "gpu-2" not in devices(), "the GPU to go")
        port = re.search(r"port=(\d+)", log_of(tmp_path))
        assert port is not None

        def metrics() -> str:
            return urllib3.request("GET", f"http://127.0.0.1:{port[1]}/metrics").data.decode()

        own = f'driver="gpu.nvidia.com",node="{name}"'
        wait_for(lambda: f'nvidia_dra_left_out_devices{{{own},reason="policy"}} 1.0' in metrics(), "the metrics")
        assert f'nvidia_dra_published_devices{{device_type="gpu",{own}}} 2.0' in metrics()
        ready = f"http://127.0.0.1:{port[1]}/readyz"
        wait_for(lambda: urllib3.request("GET", ready).status == 200, "the process to be ready")


def test_no_text_in_the_policy_file_ends_the_controller(client: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    name, policy = node_with_slices(client), tmp_path / "policy.yaml"
    policy.touch()
    arguments = ("--node-name", name, "--kubeconfig", str(kubeconfig), "--simulated-node", "h100x8")
    texts = ["mig: !!int foo", "x: 2024-99-01", "[" * 30_000, "health: {withdrawAfterSeconds: " + "9" * 400 + "}"]
    with running(tmp_path, *arguments, f"--policy-file={policy}", "--poll-interval=1") as process:
        wait_for(lambda: client.list(SLICES, field_selector=f"spec.nodeName={name}").items, "slices")
        for number, text in enumerate(texts, start=1):
            policy.write_text(text)
            wait_for(lambda: log_of(tmp_path).count("the last valid policy stays in effect") == number, "a complaint")  # noqa: B023
        assert process.poll() is None
    assert "Traceback" not in log_of(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy-file", "{folder}/none.yaml"], "policy file {folder}/none.yaml cannot be read"),
        (
            ["--policy-file", "{folder}/bad.yaml"],
            "policy file {folder}/bad.yaml: gpus[0].match.modells: unknown field; did you mean",
        ),
        (["--additional-xids-to-ignore", "13,x"], "'13,x' must be numbers, separated by commas"),
        (["--poll-interval", "0"], "0.0 is not in the range x>=1.0"),
        (["--http-endpoint", "8080"], "'8080' must be HOST:PORT"),
        (["--polcy-file", "x"], "no such option"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_that_helps(
    arguments: list[str], complaint: str, kubeconfig: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text("gpus: [{match: {modells: [x]}}]")
    flags = ["--node-name=node-a", f"--kubeconfig={kubeconfig}", "--simulated-node=h100x8"]
    given = [argument.format(folder=tmp_path) for argument in arguments]
    command = [sys.executable, "-m", "controller.main", f"--simulated-root={tmp_path / 'node'}", *flags, *given]
    ended = run(command)
    assert ended.returncode == 2
    assert complaint.format(folder=tmp_path) in ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
