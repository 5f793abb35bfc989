# SPDX-License-Identifier: Apache-2.0
"""dra-sandbox as a user runs it."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.apiserver import SLICES, connect
from tests.support.waiting import wait_for

SANDBOX = (sys.executable, "-m", "dra_driver.sandbox.main")


def test_the_demo_shows_every_step_and_leaves_nothing(short_path: Path) -> None:
    command = [*SANDBOX, "demo", "--keep", str(short_path / "kept")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    shown = ("fits  Pod mig-slices", "|    2g.20gb    |1g.10gb|1g.10gb|", '"kind": "k8s.gpu.nvidia.com/claim"')
    for text in (*shown, "killed process", "nothing is left"):
        assert text in result.stdout
    assert (short_path / "kept/logs/kubeletplugin.log").is_file()


def test_up_serves_an_api_until_it_is_interrupted(short_path: Path) -> None:
    folder = short_path / "sandbox"
    command = [*SANDBOX, "up", "--folder", str(folder), "--node", "a30x4-mig"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"export KUBECONFIG={folder / 'kubeconfig'}\n"
        with connect(folder / "kubeconfig") as client:
            slices = wait_for(lambda: client.list(SLICES).items, "slices")
        assert {one["spec"]["pool"]["name"] for one in slices} == {"node-1"}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert "stopped" in (folder / "logs/kubeletplugin.log").read_text(encoding="utf-8")


def test_up_on_unknown_hardware_names_what_there_is(tmp_path: Path) -> None:
    command = [*SANDBOX, "up", "--folder", str(tmp_path / "sandbox"), "--node", "h900x8"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "h900x8" in result.stderr
    assert "h100x8" in result.stderr
    assert len(result.stderr.splitlines()) == 1
