# SPDX-License-Identifier: Apache-2.0
"""Plans, carried out in the sandbox: kubectl runs the commands of the steps, and real processes of the driver follow.

The old state is simulated: nodes have their labels, allocatable resources as kubelet reports them for the device
plugin, and the plugin's DaemonSet has pods. What Helm and DaemonSets of the chart do is done here: DeviceClasses of the
chart's rendering, and the driver runs on a node while the node has the label.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.gpu.simulated.description import parse_description
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DAEMON_SETS, DEPLOYMENTS, NAMESPACES, NODES, PODS, claims_of
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.controlplane import Kubernetes, control_plane
from dra_driver.sandbox.environment import held
from dra_driver.sandbox.loop import CLASSES, SLICES, connected
from dra_driver.sandbox.nodes import PERIODS, NodeSetup, SandboxNode
from tests.charts.rendering import render
from tests.dryrun.conftest import DryRun
from tests.support.preloaded import children
from tests.support.waiting import wait_for

from .test_clusters import FOLDER

JSON = dict[str, Any]

MARK = "gpu.nvidia.com/dra-driver"
KUBECTL = shutil.which("kubectl")
A100 = "model: A100-SXM4-40GB"
HARDWARE = {
    "single-node": "gpus: [{model: T4-PCIE-16GB, count: 2}]",
    "time-slicing": "gpus: [{model: T4-PCIE-16GB, count: 2}]",
    "operator-mig-mixed": (
        f"gpus: [{{{A100}}}, {{{A100}, mig: true,"
        " instances: [{profile: 3g.20gb, start: 0}, {profile: 3g.20gb, start: 4}]}]"
    ),
}
"""What the labels of the cluster's nodes tell, as hardware."""
PLANS = ("time-slicing", "operator-mig-mixed")
"""A device plugin that is patched, on two nodes with shares, and one of the GPU Operator, with MIG devices and a whole
GPU. `test_clusters` compares the commands of all clusters.
"""

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on PATH")]


class Site:
    """A cluster in its old state, and the people and programs that carry out a plan there."""

    def __init__(self, client: ApiClient, nodes: dict[str, SandboxNode], kubeconfig: Path, plan: Path) -> None:
        self.client = client
        self._nodes = nodes
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._plan = plan
        self._offered: dict[str, JSON] = {}
        self._running: dict[str, contextlib.ExitStack] = {}

    def begin(self, objects: list[JSON]) -> None:
        """Create the objects of the old state."""
        for name in {one["metadata"].get("namespace", "default") for one in objects} - {"default", "kube-system"}:
            self.client.create(NAMESPACES, {"metadata": {"name": name}})
        kinds = {"DaemonSet": DAEMON_SETS, "Deployment": DEPLOYMENTS}
        for one in objects:
            metadata = one["metadata"]
            if one["kind"] == "Node":
                resources = one["status"]["allocatable"]
                self._offered[metadata["name"]] = {k: v for k, v in resources.items() if k.startswith("nvidia.com/")}
                self._label(metadata["name"], metadata["labels"])
                self._report(metadata["name"])
            elif one["kind"] in kinds:
                one["spec"]["template"]["spec"].pop("priorityClassName", None)
                self.client.create(kinds[one["kind"]], one, metadata.get("namespace", "default"))

    def carry_out(self, step: JSON, field: str = "commands") -> None:
        """Run the commands of a step, or those of its way back, for each of its nodes."""
        for node in step["nodes"] or [""]:
            for line in step[field]:
                command, _, remark = line.partition("  # ")
                if command.startswith("kubectl get resourceclaims"):
                    self._wait_for_silence(command, node)
                elif command.startswith("kubectl"):
                    self.run(command, node)
                if "allocatable" in command:
                    self._wait_for_kubelet(node, gone="repeat until it has no" in remark)
                if f"{MARK}=true" in command:
                    self._start_driver(node)
                elif f"{MARK}=pending" in command and node in self._running:
                    self._running.pop(node).close()
                if "resourceslices" in command and remark:
                    self._wait_for_slices(node, there="until they are there" in remark)

    def run(self, command: str, node: str = "") -> str:
        """Run a command in the folder of the plan. Its output."""
        environment = {**self._environment, "NODE": node}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self._plan,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def _wait_for_silence(self, command: str, node: str) -> None:
        wait_for(lambda: not self.run(command, node), f"{command} to print nothing")

    def _wait_for_slices(self, node: str, *, there: bool) -> None:
        wait_for(lambda: bool(self.slices(node)) == there, f"slices of {node}")

    def check_devices(self, step: JSON) -> None:
        """The first check of a step for nodes: the command prints the number that is expected."""
        command, expected = step["checks"][0].rsplit(" | wc -l: ", 1)
        for node in step["nodes"]:
            assert self.run(f"{command} | wc -l", node).strip() == expected.split(",")[0]

    def slices(self, node: str) -> list[JSON]:
        return self.client.list(SLICES, field_selector=f"spec.nodeName={node}").items

    def claims(self) -> list[JSON]:
        return self.client.list(claims_of(V1)).items

    def running(self) -> list[JSON]:
        """The pods of Deployments that run."""
        return [one for one in self._pods("ReplicaSet") if one.get("status", {}).get("phase") == "Running"]

    def close(self) -> None:
        for stack in self._running.values():
            stack.close()

    def _pods(self, owner: str, node: str = "") -> list[JSON]:
        return [
            one
            for one in self.client.list(PODS).items
            if one["metadata"].get("ownerReferences", [{}])[0].get("kind") == owner
            and node in ("", one["spec"].get("nodeName"))
        ]

    def _label(self, name: str, labels: JSON) -> None:
        node = self.client.get(NODES, name)
        node["metadata"]["labels"] |= labels
        self.client.update(NODES, node)

    def _report(self, name: str, *, gone: bool = False) -> None:
        """Report the plugin's resources as kubelet does. It keeps a resource that is gone, with the amount 0."""
        node = self.client.get(NODES, name)
        offered = {key: "0" if gone else value for key, value in self._offered[name].items()}
        for field in ("capacity", "allocatable"):
            node["status"][field] |= offered
        self.client.update(NODES, node, subresource="status")

    def _wait_for_kubelet(self, node: str, *, gone: bool) -> None:
        what = f"the device plugin to {'leave' if gone else 'come to'} {node}"
        wait_for(lambda: bool(self._pods("DaemonSet", node)) != gone, what)
        self._report(node, gone=gone)

    def _start_driver(self, node: str) -> None:
        stack = self._running[node] = contextlib.ExitStack()
        stack.enter_context(self._nodes[node].driver_running())
        self._nodes[node].wait_registered()


@contextlib.contextmanager
def site(name: str, policy: JSON, plan: Path, kubernetes: Kubernetes) -> Iterator[Site]:
    """A control plane and nodes with a kubelet, on which no driver runs yet."""
    objects = [
        one
        for path in sorted((FOLDER / name).iterdir())
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document
        for one in (document["items"] if document["kind"] == "List" else [document])
    ]
    names = [one["metadata"]["name"] for one in objects if one["kind"] == "Node"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-")))
        (folder / "policy.json").write_text(json.dumps(policy), encoding="utf-8")
        lock = stack.enter_context(held(folder))
        kubeconfig = folder / "kubeconfig"
        plane = control_plane(kubernetes, folder, kubeconfig, lock)
        description = parse_description(f'driverVersion: 570.158.01\ncudaVersion: "12.8"\n{HARDWARE[name]}', name)
        # The slices of a driver that is gone: kubelet waits 30 s before it deletes them.
        periods = replace(PERIODS, wipe_delay=1.0)
        setup = NodeSetup(kubeconfig, description, children(lock), folder / "policy.json", periods)
        nodes = {node: SandboxNode(node, folder / node, setup) for node in names}
        start_controllers = stack.enter_context(plane)
        client = stack.enter_context(connected(kubeconfig))
        for node in nodes.values():
            stack.enter_context(node.kubelet_running("v1.37.0"))
        start_controllers()
        found = Site(client, nodes, kubeconfig, plan)
        stack.callback(found.close)
        operator = [one for one in objects if one["kind"] == "ClusterPolicy"]
        found.begin([*objects, *(operated_daemon_set() for _ in operator)])
        yield found


def operated_daemon_set() -> JSON:
    """The DaemonSet that the GPU Operator makes, as far as it matters here."""
    spec = {
        "nodeSelector": {"nvidia.com/gpu.deploy.device-plugin": "true"},
        "containers": [{"name": "nvidia-device-plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"}],
    }
    labels = {"app": "nvidia-device-plugin-daemonset"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_changes_node_after_node_and_one_back(dryrun: DryRun, tmp_path: Path, name: str) -> None:
    code, out, err = dryrun("migrate", FOLDER / name, "--verify", "-o", "json", "--write", tmp_path)
    assert code == 0, err
    plan = json.loads(out)
    pods = len(plan["verification"]["demands"])
    with site(name, plan["values"].get("policy", {}), tmp_path, Kubernetes()) as there:
        wait_for(lambda: len(there.running()) == pods, "the pods to run with the device plugin")
        assert not there.claims()
        for value in render(plan["values"]):
            if value["kind"] == "DeviceClass":
                there.client.create(CLASSES, value)
        first, *others = plan["steps"]
        for command in first["commands"]:
            if command.startswith("kubectl apply"):
                there.run(command)
        for step in others[:-1]:
            there.carry_out(step)
            if step["nodes"]:
                there.check_devices(step)
        wait_for(lambda: len(there.running()) == pods, "the pods to run with this driver")
        assert len(there.claims()) == pods
        got = [result for one in there.claims() for result in one["status"]["allocation"]["devices"]["results"]]
        assert all(re.fullmatch("gpu-[0-9]+(-mig-.*)?", one["device"]) for one in got)
        if name == "time-slicing":
            (step,) = [one for one in others if one["nodes"] == ["node-2"]]
            (command,) = [line for line in step["back"] if line.startswith("kubectl get resourceclaims")]
            assert there.run(command.partition("  # ")[0], "node-2"), "two of the ten pods are there"
            there.carry_out(step, "back")
            wait_for(lambda: len(there.running()) == pods, "the pods to run again")
            assert not there.slices("node-2")
            assert MARK not in there.client.get(NODES, "node-2")["metadata"]["labels"]
            assert there.claims(), "the other node still has this driver"


def test_workloads_get_claims_and_are_changed_back(dryrun: DryRun, tmp_path: Path) -> None:
    """On a release without DRAExtendedResource. The Deployment is changed back before its node."""
    options = ("--kubernetes-version", "1.34", "-o", "json", "--write", tmp_path)
    code, out, err = dryrun("migrate", FOLDER / "single-node", *options)
    assert code == 0, err
    plan = json.loads(out)
    with site("single-node", {}, tmp_path, Kubernetes("1.34")) as there:
        wait_for(lambda: len(there.running()) == 1, "the pod to run with the device plugin")
        for value in render(plan["values"], 34):
            if value["kind"] == "DeviceClass":
                there.client.create(CLASSES, value)
        _, plugin, node, workloads, _ = plan["steps"]
        there.carry_out(plugin)
        there.carry_out(node)
        assert not there.claims()
        there.carry_out(workloads | {"nodes": []})
        wait_for(lambda: [len(there.running()), len(there.claims())] == [1, 1], "the pod to run with a claim")
        there.carry_out(workloads | {"nodes": []}, "back")
        there.carry_out(node, "back")
        wait_for(lambda: [len(there.running()), len(there.claims())] == [1, 0], "the pod to run as before")
