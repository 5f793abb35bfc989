# SPDX-License-Identifier: Apache-2.0
"""The script of docs/how-to/repack.md in a sandbox, while other pods come and go.

Pods of Deployments are spread over GPUs so that a whole GPU fits nowhere. The script moves pods until a pod with a
whole GPU has a node. Then nothing of it is left, and every Deployment has its pod, with devices.
"""

import os
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.snapshot import encoded
from dra_driver.kube.api import ApiClient, Kind, newest_taint_rules
from dra_driver.kube.kinds import DEPLOYMENTS, NODES, PODS, kind_named
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.controlplane import control_loop
from dra_driver.sandbox.loop import CLAIMS, CLASSES, SLICES
from tests.dryrun.clusters import node
from tests.dryrun.drain.world import device_class
from tests.support import examples
from tests.support.apiserver import connect
from tests.support.onpath import on_path
from tests.support.waiting import wait_for

JSON = dict[str, Any]

PAGE = Path(__file__).parents[2] / "docs/how-to/repack.md"
DRIVER = "gpu.nvidia.com"
GPUS = 3
SLICES_OF_GPU = 4
PATIENCE = 300.0
STREAM = ("come", "go")
TEMPLATES = kind_named("resource.k8s.io/v1", "ResourceClaimTemplate", namespaced=True)

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on PATH")


def template(profile: str) -> JSON:
    expression = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": profile.replace(".", "-"), "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


def pod_spec(profile: str) -> JSON:
    """A pod that ends at once when it is deleted."""
    return {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": profile.replace(".", "-")}],
    }


@dataclass
class Sandbox:
    """An API server of 1.37 with the stand-in controllers, and a node with three A30 GPUs."""

    client: ApiClient
    kubeconfig: Path
    rules: Kind

    def deploy(self, name: str, replicas: int) -> None:
        """A Deployment of pods with one slice each."""
        labels = {"app": name}
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec("1g.6gb")},
        }
        self.client.create(DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec}, "default")

    def scale(self, name: str, replicas: int) -> None:
        """Changes the number of pods."""
        self.client.patch(DEPLOYMENTS, name, {"spec": {"replicas": replicas}}, namespace="default")

    def pods(self) -> list[JSON]:
        """The pods that are not being deleted."""
        return [pod for pod in self.client.list(PODS).items if not pod["metadata"].get("deletionTimestamp")]

    def settled(self, wanted: dict[str, int]) -> bool:
        """Whether the Deployments have these numbers of pods, and no others, all of them on a node."""
        counts: dict[str, int] = {}
        for pod in self.pods():
            name = pod["metadata"].get("labels", {}).get("app", "")
            if name and pod["spec"].get("nodeName"):
                counts[name] = counts.get(name, 0) + 1
        every = [pod for pod in self.pods() if pod["metadata"].get("labels", {}).get("app")]
        return counts == {name: count for name, count in wanted.items() if count} and len(every) == sum(counts.values())

    def has_only_claims_of_pods(self) -> bool:
        """Whether each claim belongs to a pod that exists, and each pod has one."""
        owners = {
            owner["name"]
            for claim in self.client.list(CLAIMS).items
            for owner in claim["metadata"].get("ownerReferences", ())
        }
        return owners == {pod["metadata"]["name"] for pod in self.pods()}

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Two Deployments whose pods come and go meanwhile."""
        stopped = threading.Event()

        def stream() -> None:
            turn = 0
            while not stopped.wait(1.0):
                turn += 1
                self.scale(STREAM[turn % 2], turn // 2 % 2)

        thread = threading.Thread(target=stream)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            for name in STREAM:
                self.scale(name, 0)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with ExitStack() as stack:
        options = ApiServerOptions(minor=37)
        server = stack.enter_context(ApiServer(options))
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        client = stack.enter_context(connect(kubeconfig))
        for value in encoded(node(1, gpus=GPUS)):
            room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
            more = {"status": {"allocatable": room, "capacity": room}} if value["kind"] == "Node" else {}
            client.create(NODES if value["kind"] == "Node" else SLICES, {**value, **more})
        client.create(CLASSES, device_class("mig.nvidia.com", "mig"))
        for profile in ("1g.6gb", "4g.24gb"):
            client.create(TEMPLATES, template(profile), "default")
        rules = newest_taint_rules(client)
        assert rules is not None
        loop = stack.enter_context(control_loop(kubeconfig, "1.37", options.release()))
        loop.start()
        stack.callback(loop.stop)
        yield Sandbox(client, kubeconfig, rules)


def spread_pods(sandbox: Sandbox, rng: random.Random) -> dict[str, int]:
    """Fills all slices, and leaves a pod or two on each GPU. Returns the replicas of each Deployment."""
    names = [f"d{number}" for number in range(GPUS * SLICES_OF_GPU)]
    for name in names:
        sandbox.scale(name, 1)
    wait_for(lambda: sandbox.settled(dict.fromkeys(names, 1)), "all slices to be in use", PATIENCE)
    on_gpu: dict[str, list[str]] = {}
    for pod in sandbox.pods():
        claim = sandbox.client.get(CLAIMS, pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"], "default")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        on_gpu.setdefault(result["device"].partition("-mig-")[0], []).append(pod["metadata"]["labels"]["app"])
    assert len(on_gpu) == GPUS
    kept = {name for apps in on_gpu.values() for name in rng.sample(sorted(apps), rng.choice([1, 1, 2]))}
    for name in names:
        sandbox.scale(name, int(name in kept))
    wanted = {name: int(name in kept) for name in names}
    wait_for(lambda: sandbox.settled(wanted), "the other pods to leave", PATIENCE)
    return wanted


def script() -> str:
    """The script of the page."""
    (text,) = re.findall(
        r"^```bash\n(# repack\.sh.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(text)


def run_script(sandbox: Sandbox, folder: Path) -> None:
    """Runs the script of the page until a pod with a whole GPU has a node."""
    train = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "default"}}
    (folder / "train.yaml").write_text(yaml.safe_dump({**train, "spec": pod_spec("4g.24gb")}), encoding="utf-8")
    with on_path("dra-dryrun") as (programs, variables, descriptor):
        cluster = {"PATH": f"{programs}:{os.environ['PATH']}", "KUBECONFIG": str(sandbox.kubeconfig)}
        result = subprocess.run(
            ["bash", "-c", script(), "repack.sh", "train.yaml", "default", "train"],
            cwd=folder,
            env={**os.environ, **variables, **cluster},
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_script_of_the_page_makes_room_while_pods_come_and_go(sandbox: Sandbox, tmp_path: Path) -> None:
    rng = random.Random(45)
    for name in (*(f"d{number}" for number in range(GPUS * SLICES_OF_GPU)), *STREAM):
        sandbox.deploy(name, 0)
    for _ in range(examples(5)):
        wanted = spread_pods(sandbox, rng)
        with sandbox.streaming():
            run_script(sandbox, tmp_path)
        assert sandbox.client.get(PODS, "train", "default")["spec"]["nodeName"]
        assert not sandbox.client.list(sandbox.rules).items
        sandbox.client.delete(PODS, "train", "default")
        wait_for(partial(sandbox.settled, wanted), "every pod to have a node", PATIENCE)
    wait_for(sandbox.has_only_claims_of_pods, "the claims of pods that are gone to be deleted", PATIENCE)
