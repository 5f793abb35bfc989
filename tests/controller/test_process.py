# SPDX-License-Identifier: Apache-2.0
"""dra-controller as a process: how it starts, ends and complains."""

import contextlib
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from dra_driver.cluster import NODES, ApiClient
from tests.support.apiserver import SLICES
from tests.support.waiting import wait_for


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A controller process; its log is folder/log."""
    command = [sys.executable, "-m", "controller.main", "--simulated-root", str(folder / "node"), *arguments]
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
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


def test_it_publishes_and_ends_cleanly_when_told_to(client: ApiClient, kubeconfig: Path, tmp_path: Path) -> None:
    node = node_with_slices(client)
    arguments = ("--node-name", node, "--kubeconfig", str(kubeconfig), "--simulated-node", "h100x8-mixed")
    with running(tmp_path, *arguments) as process:
        wait_for(lambda: client.list(SLICES, field_selector=f"spec.nodeName={node}").items, "slices")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
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
        subprocess.Popen(command, stderr=log, env=environment) as process,
    ):
        wait_for(lambda: client.list(SLICES, field_selector=f"spec.nodeName={node}").items, "slices")
        process.send_signal(signal.SIGTERM)
    assert all(line.startswith("{") for line in log_of(tmp_path).splitlines())
