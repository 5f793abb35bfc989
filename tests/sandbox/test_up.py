# SPDX-License-Identifier: Apache-2.0
"""What `dra-sandbox up` is told: nodes, policy, release, feature gates, the chart, and Kubernetes' own programs."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.domains.objects import COMPUTE_DOMAINS
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DAEMON_SETS, JOBS, LEASES, NODES, PODS, kind_named, templates_of
from dra_driver.kube.resource.codec import V1
from dra_driver.process.command import run
from dra_driver.process.mps import processes_of
from dra_driver.sandbox.controlplane import PROGRAMS, RELEASE, device_classes
from dra_driver.sandbox.demo import examples_folder
from dra_driver.sandbox.environment import Sandbox, held
from dra_driver.sandbox.loop import CLASSES, SLICES, TEMPLATES
from dra_driver.sandbox.main import sandbox
from dra_driver.sandbox.marked import marked_processes
from tests.support import preloaded
from tests.support.apiserver import connect
from tests.support.mps import connect as connect_to_mps
from tests.support.waiting import wait_for

from .apiserver.binaries import binary

SANDBOX = (sys.executable, "-m", "dra_driver.sandbox.main")
CHART = Path(__file__).parents[2] / "charts/dra-driver-gpu"


@contextlib.contextmanager
def up(folder: Path, *arguments: str, **environment: str) -> Iterator[tuple[ApiClient, list[str]]]:
    """`dra-sandbox up` in a folder: a client of it, and what it says."""
    command = [*preloaded.SANDBOX, "up", "--folder", str(folder), *arguments]
    variables = {**os.environ, **environment}
    with preloaded.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables
    ) as process:
        assert process.stdout is not None
        try:
            said = [process.stdout.readline() for _ in range(6)]
            assert said[0] == f"export KUBECONFIG={folder / 'kubeconfig'}\n"
            with connect(folder / "kubeconfig") as client:
                yield client, said
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert "stopped" in (folder / "node-1/logs/kubeletplugin.log").read_text(encoding="utf-8")
        finally:
            process.kill()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Exit code and last line of standard error of `dra-sandbox up`, run in this process."""
    with pytest.raises(SystemExit) as ended:
        run(sandbox, ["up", *arguments])
    return ended.value.code, capsys.readouterr().err.splitlines()[-1]


def devices(client: ApiClient, node: str) -> set[str]:
    slices = client.list(SLICES, field_selector=f"spec.nodeName={node}").items
    return {device["name"] for item in slices for device in item["spec"].get("devices") or ()}


def test_nodes_have_hardware_of_their_own_and_follow_a_policy(short_path: Path) -> None:
    policy = short_path / "policy.yaml"
    rule = {"match": {"nodes": ["node-2"], "indexes": [0]}, "publish": False}
    policy.write_text(yaml.safe_dump({"gpus": [rule]}), encoding="utf-8")
    options = ("--nodes", "2", "--policy", str(policy), "--kubernetes-version", "1.35")
    gates = "DRAPartitionableDevices=true,DRADeviceTaints=true"
    with up(short_path / "sandbox", "--node", "a30x4", *options, "--feature-gates", gates) as (client, said):
        assert "2 nodes, Kubernetes 1.35 at https://" in said[1]
        told = [line for line in said if line.startswith(f"The driver's policy is from {policy}")]
        assert "values of `helm install` and `helm upgrade` do not change it" in told[0]
        nodes = {node["metadata"]["name"]: node for node in client.list(NODES).items}
        assert set(nodes) == {"node-1", "node-2"}
        assert nodes["node-1"]["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.0"
        assert nodes["node-1"]["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A30"
        assert {lease["metadata"]["name"] for lease in client.list(LEASES, namespace="kube-node-lease").items} == set(
            nodes
        )
        everywhere = {f"gpu-{number}" for number in range(4)}
        assert devices(client, "node-1") == everywhere
        assert devices(client, "node-2") == everywhere - {"gpu-0"}
        assert client.get(CLASSES, "gpu.nvidia.com")["spec"]["selectors"]
        tainted = client.list(SLICES).items[0]
        tainted["spec"]["devices"][0]["taints"] = [{"key": "a.io/b", "effect": "NoSchedule"}]
        assert client.update(SLICES, tainted)["spec"]["devices"][0]["taints"]


def test_pods_with_mps_run_and_no_daemon_is_left_when_it_ends(short_path: Path) -> None:
    with up(short_path / "sandbox") as (client, _):
        for name in ("mps", "mps-mig"):
            for value in yaml.safe_load_all((examples_folder() / f"{name}.yaml").read_text(encoding="utf-8")):
                client.create({"Pod": PODS, "ResourceClaimTemplate": TEMPLATES}[value["kind"]], value, "default")
        wait_for(lambda: sum(map(_is_running, client.list(PODS).items)) == 2, "the pods")
        for pid in short_path.glob("sandbox/node-1/kubelet/plugins/*/mps/s*/pipe/*.pid"):
            connect_to_mps(pid.parent)
        daemons = processes_of(short_path)
        assert len(daemons) == 4  # each has a server
        os.kill(daemons[0], signal.SIGSTOP)
    assert processes_of(short_path) == []


def test_a_sandbox_that_is_killed_leaves_no_imex_daemon(short_path: Path) -> None:
    folder = short_path / "sandbox"
    command = [*SANDBOX, "up", "--folder", str(folder), "--node", "gb200x4"]
    with preloaded.start(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with connect(folder / "kubeconfig") as client:
            channel = {"resourceClaimTemplate": {"name": "channel"}}
            meta = {"name": "domain"}
            spec: Any = {"channel": channel}
            domain = {
                "apiVersion": COMPUTE_DOMAINS.api_version,
                "kind": "ComputeDomain",
                "metadata": meta,
                "spec": spec,
            }
            client.create(COMPUTE_DOMAINS, domain, "default")
            spec = {
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "c"}]}}],
                "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "channel"}],
            }
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec}
            client.create(PODS, pod, "default")
            wait_for(lambda: _is_running(client.get(PODS, "worker", "default")), "the worker")
        assert marked_processes(folder)
        process.kill()
    wait_for(lambda: not marked_processes(folder), "nvidia-imex to end")
    with held(folder):  # waits for all processes that have inherited the lock
        assert processes_of(folder) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--feature-gates", "DRAFoo=true"], 2, "Kubernetes 1.37 has no feature gate DRAFoo"),
        (["--feature-gates", "DRADeviceTaints"], 2, "not of the form GATE=true or GATE=false"),
        (["--policy", __file__], 2, "test_up.py"),
        (["--real"], 2, "--real: set KUBEBUILDER_ASSETS"),
        (["--node", "h900x8"], 2, "h900x8"),
    ],
    ids=["gate", "form", "policy", "real", "hardware"],
)
def test_unusable_option_is_named(
    tmp_path: Path,
    arguments: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    found, said = refusal(capsys, "--folder", str(tmp_path / "sandbox"), *arguments)
    assert found == code
    assert text in said
    assert not (tmp_path / "sandbox").exists()


def test_a_folder_without_the_programs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    (tmp_path / "etcd").touch()
    found, said = refusal(capsys, "--folder", str(tmp_path / "s"), "--real")
    assert found == 1
    assert f"{tmp_path} has no kube-apiserver, kube-controller-manager, kube-scheduler" in said


def install_programs(folder: Path, script: str) -> None:
    """Programs of a control plane that run this script of a shell and fail."""
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\nexit 3\n", encoding="utf-8")
        program.chmod(0o755)


def test_a_program_that_ends_is_named_with_its_last_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    install_programs(tmp_path, "echo unknown flag")
    found, said = refusal(capsys, "--folder", str(tmp_path / "s"), "--real")
    assert found == 1
    assert "kube-apiserver ended with code 3" in said
    assert said.endswith(" is: unknown flag")


def test_programs_are_out_of_reach_of_the_terminals_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signal goes to a whole group of processes. The nodes need the API server until their pods have ended."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    install_programs(tmp_path, "read _ _ _ _ _ session _ </proc/$$/stat\necho $session")
    said = refusal(capsys, "--folder", str(tmp_path / "s"), "--real")[1]
    assert int(said.rpartition(" is: ")[2]) != os.getsid(0)


@pytest.mark.skipif(not all(map(binary, PROGRAMS)), reason=f"no {', '.join(PROGRAMS)} in KUBEBUILDER_ASSETS")
def test_kubernetes_own_programs_place_pods_on_the_simulated_nodes(short_path: Path) -> None:
    apiserver = binary("kube-apiserver")
    assert apiserver is not None
    options = ("--node", "a30x4", "--nodes", "2", "--real")
    with up(short_path / "sandbox", *options, KUBEBUILDER_ASSETS=str(Path(apiserver).parent)) as (client, said):
        assert f"the programs of {Path(apiserver).parent} at https://" in said[1]
        spec: Any = {"containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}]}
        template = {
            "metadata": {"labels": {"app": "w"}},
            "spec": {**spec, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
        }
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        client.create(
            templates_of(V1),
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": "one"},
                "spec": {"spec": {"devices": {"requests": [request]}}},
            },
            "default",
        )
        workload = {"selector": {"matchLabels": {"app": "w"}}, "template": template}
        value = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "w"}, "spec": workload}
        client.create(DAEMON_SETS, value, "default")
        wait_for(lambda: client.get(DAEMON_SETS, "w", "default").get("status", {}).get("numberReady") == 2, "pods", 120)
        assert {pod["spec"]["nodeName"] for pod in client.list(PODS).items} == {"node-1", "node-2"}


def test_example_of_a_compute_domain_runs_on_two_nodes_and_the_chart_beside_it(short_path: Path) -> None:
    """The sandbox's objects become the release's; its DaemonSet and Deployment get pods, in which no program runs."""
    with Sandbox(short_path, "gb200x4", nodes=2, children=preloaded.children) as running:
        client = running.client
        text = (examples_folder() / "compute-domain.yaml").read_text(encoding="utf-8")
        *others, job = yaml.safe_load_all(text)
        job["spec"] |= {"completions": 3, "parallelism": 3}  # the third pod waits for a node
        for value in (*others, job):
            client.create(kind_named(value["apiVersion"], value["kind"], namespaced=True), value, "default")
        wait_for(lambda: client.get(JOBS, "training", "default")["status"].get("completionTime"), "the job", 90)
        labels = {node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in client.list(NODES).items}
        assert len(labels) == 1
        client.delete(JOBS, "training", "default")
        client.delete(COMPUTE_DOMAINS, "training", "default")
        wait_for(lambda: not running.pods(), "its end")

        helm = pytest.importorskip("helm_python")
        before = running.slices()
        with helm.Config(kubeconfig_path=running.kubeconfig, namespace=RELEASE) as config:
            config.install(str(CHART), RELEASE, {"simulatedNode": "gb200x4"}, namespace=RELEASE)
            wait_for(lambda: sum(map(_is_running, running.pods())) == 3, "the chart's pods")
            config.test(RELEASE)  # raises an error unless the pod succeeds
            made = {one["metadata"]["name"]: one for one in client.list(CLASSES).items}
            assert {one["metadata"]["labels"]["app.kubernetes.io/instance"] for one in made.values()} == {RELEASE}
            ours = {one["metadata"]["name"]: one["spec"] for one in device_classes(compute_domains=True)}
            assert {name: one["spec"] for name, one in made.items()} == ours
            config.uninstall(RELEASE)
        wait_for(lambda: not running.pods(), "the chart's pods to go")
        assert client.list(CLASSES).items == []
        assert running.slices() == before


def _is_running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["phase"] == "Running")
