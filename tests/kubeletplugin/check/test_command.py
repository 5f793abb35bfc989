# SPDX-License-Identifier: Apache-2.0
"""The command as somebody types it, on a simulated node of a host in a folder."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import Return
from kubeletplugin.check.command import wait_for_hardware
from kubeletplugin.finding import CheckResult, NodeCheck, document, line, text
from tests.support.nodes import make_node
from tests.support.preloaded import run, start

from .runtimes import CONTAINERD_1, CONTAINERD_2, SOCKET, RecordedAnswer, serve_runtime
from .support import make_host, process

pytestmark = pytest.mark.node

SIGNALLED_IN_A_LIBRARY = """
import io, os, signal, sys

class Stream(io.StringIO):
    def isatty(self):  # click calls it, and catches every exception
        os.kill(os.getpid(), signal.SIGTERM)
        return False

sys.stderr = Stream()
"""
RUN = "from dra_driver.process.command import run; from kubeletplugin.check.command import check; run(check)"


class Node:
    """A host whose kubelet has made its folders, and its simulated GPUs."""

    def __init__(self, folder: Path) -> None:
        self.host = folder / "host"
        make_host(self.host, {})
        for name in ("plugins", "plugins_registry"):
            (self.host / "var/lib/kubelet" / name).mkdir(parents=True)
        self.hardware = make_node(folder / "gpus", "h100x8").node
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SIMULATED_ROOT": str(folder / "gpus")}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", RUN, "--host-root", str(self.host), "--node-name", "node-a", *arguments]

    def check(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run(self.command(*arguments), env=self.environment)


@pytest.fixture
def bare_node(tmp_path: Path) -> Node:
    """A node without a container runtime."""
    return Node(tmp_path)


@pytest.fixture
def node(bare_node: Node) -> Iterator[Node]:
    with serve_runtime(bare_node.host, CONTAINERD_2):
        yield bare_node


def findings(output: str) -> dict[str, str]:
    return {one["check"]: one["level"] for one in json.loads(output)["findings"]}


def test_a_node_that_is_ready_exits_with_0(node: Node) -> None:
    done = node.check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert "PASS  nvml: driver 570.158.01, CUDA 12.8\n" in done.stdout
    assert "PASS  cdi in containerd: containerd 2.3.4 has CDI enabled and reads /var/run/cdi\n" in done.stdout
    assert "PASS  container runtime version: containerd://2.3.4\n" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("0 fail")


def test_a_node_that_is_not_ready_exits_with_1_and_says_what_to_do(node: Node) -> None:
    node.hardware.unload_driver(Return.DRIVER_NOT_LOADED)
    (node.host / "var/lib/kubelet/plugins_registry").rmdir()
    done = node.check()
    assert done.returncode == 1
    assert done.stderr == ""
    assert (
        "FAIL  nvml: does not answer: nvmlInitWithFlags: DRIVER_NOT_LOADED\n      to do: `modprobe nvidia`"
        in done.stdout
    )
    assert "FAIL  kubelet plugin registry: /var/lib/kubelet/plugins_registry: missing\n" in done.stdout


def test_kubelets_own_root_decides_where_the_driver_must_be(node: Node) -> None:
    for path, content in process(812, "kubelet", "--root-dir=/data/kubelet", "--hostname-override=node-a").items():
        file = node.host / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    done = node.check()
    assert done.returncode == 1
    assert "FAIL  kubelet plugin registry: kubelet searches plugins in /data/kubelet/plugins_registry" in done.stdout
    folders = ["--kubelet-registrar-directory-path=/data/kubelet/plugins_registry"]
    folders += ["--kubelet-plugins-directory-path=/data/kubelet/plugins"]
    assert " ".join(folders) in done.stdout
    for name in ("plugins", "plugins_registry"):
        (node.host / "data/kubelet" / name).mkdir(parents=True)
    assert node.check(*folders).returncode == 0


def test_a_host_that_is_not_there_is_refused(node: Node) -> None:
    done = node.check("--host-root", "/does/not/exist")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'/does/not/exist' does not exist" in done.stderr


def test_every_thing_that_is_looked_at_has_its_line(node: Node) -> None:
    expected = (
        "driver module,driver library,driver versions,cdi hook,nvml,gpus,device nodes,mig,mig capabilities,time-slicing"
    )
    expected += ",kubelet plugin registry,kubelet plugins,cdi folder,socket paths,cdi in containerd"
    expected += ",kubelet configuration,api server,kubelet version,container runtime version,this program"
    assert ",".join(findings(node.check("--output", "json").stdout)) == expected


def test_the_hook_that_the_plugin_is_told_of_is_the_one_that_is_looked_for(node: Node) -> None:
    assert "WARN  cdi hook: no nvidia-cdi-hook" in node.check().stdout
    node.environment["NVIDIA_CDI_HOOK_PATH"] = "/opt/nvidia-cdi-hook"
    assert "FAIL  cdi hook: /opt/nvidia-cdi-hook does not exist on the host" in node.check().stdout
    (node.host / "opt").mkdir()
    (node.host / "opt/nvidia-cdi-hook").touch()
    done = node.check()
    assert done.returncode == 0
    assert "PASS  cdi hook: /opt/nvidia-cdi-hook\n" in done.stdout


def test_specs_of_another_driver_are_a_warning(node: Node) -> None:
    (node.host / "run/cdi").mkdir()
    (node.host / "run/cdi/k8s.gpu.nvidia.com-claim_1.yaml").touch()
    done = node.check()
    assert done.returncode == 0
    assert "WARN  cdi specs: /var/run/cdi has specs of NVIDIA's own DRA driver: k8s.gpu.nvidia.com-cl" in done.stdout


def test_json_has_every_finding(node: Node) -> None:
    done = node.check("--output", "json")
    value: dict[str, Any] = json.loads(done.stdout)
    assert (value["node"], value["ok"]) == ("node-a", True)
    assert findings(done.stdout)["nvml"] == "pass"
    assert all(set(one) == {"check", "level", "text", "remedy"} for one in value["findings"])


def test_runtime_without_cdi_is_a_failure(bare_node: Node) -> None:
    with serve_runtime(bare_node.host, CONTAINERD_1):
        done = bare_node.check()
    assert done.returncode == 1
    assert "FAIL  cdi in containerd: containerd 1.7.34 has CDI disabled (enable_cdi = false)\n" in done.stdout


def test_old_runtime_is_told_by_its_own_answer(bare_node: Node) -> None:
    with serve_runtime(bare_node.host, RecordedAnswer("containerd", "1.7.12", CONTAINERD_1.info)):
        done = bare_node.check()
    assert "WARN  container runtime version: containerd://1.7.12 cannot read group IDs in CDI specs" in done.stdout


def test_node_without_runtime_is_a_warning(bare_node: Node) -> None:
    done = bare_node.check()
    assert done.returncode == 0
    assert "WARN  container runtime: whether it uses our CDI specs is unknown: there is no socket" in done.stdout


def test_runtime_of_kubelet_is_asked(bare_node: Node) -> None:
    files = process(812, "kubelet", "--container-runtime-endpoint=unix:///run/other.sock")
    for path, content in files.items():
        file = bare_node.host / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    with (
        serve_runtime(bare_node.host, CONTAINERD_1, SOCKET),
        serve_runtime(bare_node.host, CONTAINERD_2, "/run/other.sock"),
    ):
        assert "cdi in containerd: containerd 2.3.4 has CDI enabled" in bare_node.check().stdout
        done = bare_node.check("--runtime-endpoint", f"unix://{SOCKET}")
    assert "cdi in containerd: containerd 1.7.34 has CDI disabled" in done.stdout


def test_fix_tells_what_it_did_below_the_findings(bare_node: Node) -> None:
    with serve_runtime(bare_node.host, CONTAINERD_1):
        done = bare_node.check("--fix")
    assert done.returncode == 1
    assert "FAIL  cdi in containerd: " in done.stdout
    assert "WARN  fix: nothing was written: `containerd config dump` ended with code " in done.stdout


def test_fix_of_a_node_that_is_ready_does_nothing(node: Node) -> None:
    assert "  fix: " not in node.check("--fix").stdout


def test_wait_ends_when_the_driver_is_there(node: Node) -> None:
    node.hardware.unload_driver(Return.DRIVER_NOT_LOADED)
    with start(
        node.command("--wait", "--interval", "0.1"),
        env=node.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "DRIVER_NOT_LOADED" not in process.stderr.readline():
            pass
        node.hardware.load_driver()
        output, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "PASS  nvml" in rest
    assert "DRIVER_NOT_LOADED" not in rest
    assert "PASS  nvml" in output


def test_wait_ends_when_the_pod_is_deleted(node: Node) -> None:
    node.hardware.unload_driver(Return.DRIVER_NOT_LOADED)
    with start(
        node.command("--wait"), env=node.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "DRIVER_NOT_LOADED" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert output == ""


def test_wait_ends_when_the_signal_comes_while_a_library_catches_exceptions(node: Node) -> None:
    node.hardware.unload_driver(Return.DRIVER_NOT_LOADED)
    python, option, program, *arguments = node.command("--wait")
    done = run([python, option, SIGNALLED_IN_A_LIBRARY + program, *arguments], env=node.environment)
    assert done.returncode == 128 + signal.SIGTERM


def test_waiting_says_each_change_once() -> None:
    absent, present = NodeCheck("nvml").failed("no", "wait"), NodeCheck("nvml").passed("yes")
    module = NodeCheck("driver module").passed("570")
    looks = iter([[absent], [absent], [module, absent], [absent], [module, present]])
    said: list[CheckResult] = []
    pauses: list[None] = []

    def look() -> Sequence[CheckResult]:
        return next(looks)

    wait_for_hardware(look, said.append, lambda: pauses.append(None))
    assert said == [absent, module, module, present]
    assert len(pauses) == 4


def test_a_finding_is_a_line_with_what_to_do_below() -> None:
    assert line(NodeCheck("a").passed("fine")) == "PASS  a: fine"
    assert line(NodeCheck("a").failed("broken", "mend it")) == "FAIL  a: broken\n      to do: mend it"
    assert text([NodeCheck("a").passed("fine"), NodeCheck("b").failed("broken", "mend it")]).endswith(
        "\n1 pass, 0 warn, 1 fail"
    )
    assert json.loads(document([NodeCheck("b").failed("broken", "mend it")], "n"))["ok"] is False
