# SPDX-License-Identifier: Apache-2.0
"""The page about installing looks at the driver's pods.

No pod runs here, so each command meets what it would meet on a cluster. `kubectl exec` runs a command in a container:
what stands behind `--` is run, with a container's environment, on a simulated node. `kubectl rollout status` runs as it
stands; this test does to the DaemonSet what its controller does.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import DAEMON_SETS, NODES
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from tests.support.apiserver import connect
from tests.support.preloaded import run

from .commands import COMMANDS, ROOT, Command, given_to, says
from .running import BIN, environment

EXEC = [step for step in given_to(__name__) if step.parts[0][1] == "exec"]
ROLLOUT = [step for step in given_to(__name__) if step.parts[0][1] == "rollout"]
NAMESPACE = "dra-driver-gpu"
NODE = "node-a"


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """An administrator's, of an API server that knows a node with containerd 1.7."""
    with ApiServer(ApiServerOptions()) as server:
        path = server.write_kubeconfig(tmp_path / "kubeconfig")
        with connect(path) as admin:
            admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            info = {"nodeInfo": {"containerRuntimeVersion": "containerd://1.7.27", "kubeletVersion": "v1.36.0"}}
            admin.patch(NODES, NODE, {"status": info}, subresource="status")
        yield path


@pytest.mark.parametrize("command", EXEC, ids=str)
def test_command_in_a_pod_prints_the_output_of_the_page(command: Command, kubeconfig: Path, short_path: Path) -> None:
    folders = {
        "KUBELET_PLUGINS_DIRECTORY_PATH": short_path / "plugins",
        "KUBELET_REGISTRAR_DIRECTORY_PATH": short_path / "plugins_registry",
    }
    for folder in folders.values():
        folder.mkdir()
    container = {
        **{name: str(folder) for name, folder in folders.items()},
        "CDI_ROOT": str(short_path / "cdi"),
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "NODE_NAME": NODE,
        "SIMULATED_NODE": "h100x8",
        "SIMULATED_ROOT": str(short_path / "gpus"),
    }
    (words,) = command.parts
    program, *arguments = words[words.index("--") + 1 :]
    done = run([str(BIN / program), *arguments], env=environment(kubeconfig) | container)
    printed = done.stdout.replace(f"{short_path}/gpus/driver/", "/")
    assert says(command.output, printed), printed + done.stderr
    assert done.returncode == 0, printed


@pytest.mark.parametrize("command", ROLLOUT, ids=str)
def test_a_rollout_is_waited_for_until_every_node_is_done(command: Command, kubeconfig: Path) -> None:
    for name in ("helm", "kubectl"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on PATH")
    (name,) = (word.partition("/")[2] for word in command.parts[0] if word.startswith("daemonset/"))
    for page, begin in (("install.md", "helm install"), (command.page, "helm upgrade")):
        above = [one for one in COMMANDS if one.page == page and (page != command.page or one.line < command.line)]
        last = [one for one in above if one.text.startswith(begin)][-1]
        subprocess.run(["bash", "-euc", last.text], cwd=ROOT, env=environment(kubeconfig), check=True)
    with connect(kubeconfig) as admin:
        report(admin, name, nodes=2, ready=1)
        waiting = subprocess.Popen(
            ["bash", "-euc", f"exec {command.text}"], env=environment(kubeconfig), stdout=subprocess.PIPE, text=True
        )
        with waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == (
                f'Waiting for daemon set "{name}" rollout to finish: 1 of 2 updated pods are available...\n'
            )
            report(admin, name, nodes=2, ready=2)
            assert waiting.stdout.read() == f'daemon set "{name}" successfully rolled out\n'
            assert waiting.wait(60) == 0


def report(admin: ApiClient, name: str, *, nodes: int, ready: int) -> None:
    """Write what the DaemonSet's controller writes when its pods run on all nodes, and some are READY."""
    generation = admin.get(DAEMON_SETS, name, NAMESPACE)["metadata"]["generation"]
    status = {
        "currentNumberScheduled": nodes,
        "desiredNumberScheduled": nodes,
        "numberAvailable": ready,
        "numberMisscheduled": 0,
        "numberReady": ready,
        "observedGeneration": generation,
        "updatedNumberScheduled": nodes,
    }
    admin.patch(DAEMON_SETS, name, {"status": status}, namespace=NAMESPACE, subresource="status")
