# SPDX-License-Identifier: Apache-2.0
"""Claims for virtual machines beside MIG claims, while the plugin and the controller are killed again and again.

Nobody may see a taint meanwhile, and the API server refuses no write. Afterwards nothing is left.
SOAK_OPERATIONS=<number> makes the storm longer: a tenth of it are claims for virtual machines. SOAK_SEED=<seed> repeats
the kills.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.kube.api import ApiClient, Watcher
from dra_driver.kube.kinds import NODES
from tests.support.apiserver import CLAIMS, SLICES, embedded
from tests.support.fuse import needs_fuse
from tests.support.kernel import Kernel
from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin, stored_claim
from tests.support.preloaded import start
from tests.support.waiting import wait_for

from .test_vfio_writes import NODE

SEED = int(os.environ.get("SOAK_SEED", "20261124"))
MACHINES = int(os.environ.get("SOAK_OPERATIONS", "60")) // 10
"""The number of claims for virtual machines."""
CALLS_BETWEEN_KILLS = 3
"""The most calls for virtual machines that succeed between two kills."""
POLICY = """gpus:
- {match: {indexes: [0, 2]}, passthrough: true}
- {match: {indexes: [1, 3]}, mig: dynamic}
health: {effect: NoExecute}
"""
MACHINE_DEVICES = ("gpu-vfio-0", "gpu-vfio-2")
MIG_DEVICES = ("gpu-1-mig-1g10gb-19-0", "gpu-1-mig-2g20gb-14-2", "gpu-3-mig-3g40gb-9-4")

pytestmark = [needs_fuse, pytest.mark.timeout(120 + 30 * MACHINES)]


class Controller:
    """The controller of the node as a process. The log of all its processes is one file."""

    def __init__(self, folder: Path, kubeconfig: Path, policy: Path) -> None:
        flags = {
            "node-name": POOL,
            "kubeconfig": kubeconfig,
            "simulated-root": folder / "node",
            "kubelet-plugins-directory-path": folder / "plugins",
            "policy-file": policy,
            "poll-interval": 1,
            "rediscover-interval": 2,
        }
        self._command = [
            sys.executable,
            "-m",
            "controller.main",
            *(f"--{name}={value}" for name, value in flags.items()),
        ]
        self._file = folder / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """Everything that was logged."""
        return self._file.read_text(encoding="utf-8")

    def start(self) -> None:
        """Start a process."""
        with self._file.open("ab") as log:
            self._process = start(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Published:
    """What clients see of the pool: the taints, and the names that a slice has twice."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.seen = 0

    def listed(self, slices: list[dict[str, Any]]) -> None:
        """All slices."""
        for one in slices:
            self.changed("LISTED", one)

    def changed(self, _event: str, one: dict[str, Any]) -> None:
        """One slice."""
        self.seen += 1
        devices = one["spec"].get("devices") or []
        self.problems += [f"{device['name']}: {device['taints']}" for device in devices if device.get("taints")]
        names = [device["name"] for device in devices]
        self.problems += [f"{name} twice" for name in set(names) if names.count(name) > 1]


@contextlib.contextmanager
def watched(client: ApiClient) -> Iterator[Published]:
    """Watch all slices."""
    published = Published()
    watcher = Watcher(client, SLICES, on_list=published.listed, on_event=published.changed)
    watcher.start()
    try:
        wait_for(lambda: published.seen, "the first slices")
        yield published
    finally:
        watcher.stop()


def persist(call: Callable[[], str]) -> None:
    """kubelet repeats a call until it succeeds, also while the plugin does not run."""

    def done() -> bool:
        try:
            return not call()
        except (grpc.RpcError, ValueError):  # ValueError: the channel was closed meanwhile
            return False

    wait_for(done, "the call to succeed", 120)


def live(client: ApiClient, plugin: Plugin, device: str, answered: Callable[[], object]) -> None:
    """The life of one claim. `answered` is called after each call that succeeds."""
    claim = stored_claim(client, device)
    persist(lambda: str(plugin.prepare(claim)[claim.uid].error))
    answered()
    persist(lambda: plugin.unprepare(claim)[claim.uid])
    answered()
    client.delete(CLAIMS, claim.name, "default")


def test_claims_for_virtual_machines_and_mig_claims_outlive_kills(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-")))
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        _, kubeconfig, client = stack.enter_context(embedded(tmp_path))
        client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": POOL}})
        hardware = make_node(folder / "node", str(NODE), POOL)
        kernel = stack.enter_context(Kernel(folder / "node").running())
        plugin = Plugin(folder, kubeconfig, f"--policy-file={policy}", hardware=hardware).start()
        controller = Controller(folder, kubeconfig, policy)
        stack.callback(plugin.kill)
        stack.callback(controller.kill)
        controller.start()
        published = stack.enter_context(watched(client))
        before, instances, logs = kernel.picture(), plugin.instances(), list[str]()
        over, answered = threading.Event(), threading.Semaphore(0)

        def kill_on() -> None:
            """Kill after every few calls for machines: however slow the node is, calls end between two kills."""
            random = Random(SEED)
            while not over.is_set():
                if random.random() < 0.7:
                    plugin.kill()
                    logs.append(plugin.log)
                    plugin.start()
                else:
                    controller.kill()
                    controller.start()
                for _ in range(random.randint(1, CALLS_BETWEEN_KILLS)):
                    answered.acquire()

        def machines(number: int) -> None:
            for _ in range(MACHINES // len(MACHINE_DEVICES)):
                live(client, plugin, MACHINE_DEVICES[number], answered.release)

        def mig(device: str) -> None:
            while not over.is_set():
                live(client, plugin, device, lambda: None)

        with ThreadPoolExecutor(len(MACHINE_DEVICES) + len(MIG_DEVICES) + 1) as pool:
            killing = pool.submit(kill_on)
            beside = [pool.submit(mig, device) for device in MIG_DEVICES]
            try:
                for one in [pool.submit(machines, number) for number in range(len(MACHINE_DEVICES))]:
                    one.result()
            finally:
                over.set()
                answered.release(CALLS_BETWEEN_KILLS)
            for one in (killing, *beside):
                one.result()

        wait_for(lambda: not VfioMarks(plugin.state / "vfio").all(), "no marks")
        wait_for(lambda: kernel.picture() == before, "the functions where they were")
        wait_for(lambda: plugin.left() == {"instances": instances, "specs": [], "records": []}, "nothing left")
        assert published.problems == []
        assert "published some slices" not in controller.log, "a write failed"
        assert "(422)" not in controller.log
        for log in (*logs, plugin.log, controller.log):
            assert "fell off the bus" not in log
