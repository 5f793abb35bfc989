# SPDX-License-Identifier: Apache-2.0
"""A long random life of the controller: webhooks that alter slices, outages, broken watches, kills, GPUs that come and
go, a driver that hangs.

When all of it is over, the slices are those of the node, and the process holds on to no more than at its beginning:
objects, threads and open files. SOAK_SEED=<seed> repeats a life, SOAK_OPERATIONS=<number> makes it longer.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dra_driver.gpu.devices import describe
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from tests.controller.node.test_outages import as_published, content
from tests.controller.node.test_publisher import make_cluster_node
from tests.support.apiserver import embedded
from tests.support.faultyserver import FaultyServer
from tests.support.nodes import make_node
from tests.support.preloaded import start
from tests.support.waiting import wait_for

from .altering import AlteringServer
from .processes import require_as_before
from .resources import ResourceCounts, Tolerance

SEED = int(os.environ.get("SOAK_SEED", "20261122"))
OPERATIONS = int(os.environ.get("SOAK_OPERATIONS", "250")) // 10
HANGING = ["nvmlDeviceGetUUID", "nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows", "nvmlSystemGetDriverVersion"]
RETURNED = "the call that hung has returned"
STARTED = "controller.main: started"
HUNG = "ERROR   dra_driver.gpu.threads"
TOLERANCE = Tolerance(500, 0.02)
"""What was sent last of a slice may be kept beside what the server has now: about 48 quantities for each of 8 GPUs."""
_BETWEEN_CENSUSES = 2.0
"""Seconds. During a census no other thread of the process runs. On a busy machine, calls hung because of one after the
other.
"""


class Life:
    """One controller's life. Operations are methods; `log` says what was done."""

    def __init__(self, folder: Path, server: FaultyServer, client: ApiClient, kubeconfig: Path) -> None:
        self.folder, self.server, self.client = folder, server, client
        self.chance = random.Random(SEED)
        self.name = make_cluster_node(client)
        self.hardware = make_node(folder / "node", "h100x8-mixed", self.name)
        self.node = self.hardware.node
        self.webhooks = AlteringServer(server, self.chance)
        self.uid = client.get(NODES, self.name)["metadata"]["uid"]
        self.log: list[str] = []
        self.unplugged: set[int] = set()
        self.command = [sys.executable, "-m", "tests.faults.controller_child", str(folder / "resource counts")]
        self.command += [f"--node-name={self.name}", f"--kubeconfig={kubeconfig}", "--poll-interval=1"]
        self.command += [f"--simulated-root={folder / 'node'}"]
        self.command += [f"--kubelet-plugins-directory-path={folder / 'plugins'}"]
        self.start()

    # The process

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            before = self.said.count(STARTED)
            self.process = start(self.command, stdout=log, stderr=log)
        wait_for(lambda: self.said.count(STARTED) > before, "the start")

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def resource_counts(self) -> ResourceCounts:
        """What the process holds on to."""
        file = self.folder / "resource counts"
        file.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        wait_for(file.exists, "the resource counts")
        found: ResourceCounts = json.loads(file.read_bytes())
        return found

    def census_at_rest(self) -> ResourceCounts:
        """What the process holds on to once the slices are right, and it does not change any more."""
        wait_for(self.right, "the slices of the node")
        last = self.resource_counts()

        def same() -> bool:
            nonlocal last
            time.sleep(_BETWEEN_CENSUSES)
            before, last = last, self.resource_counts()
            return before["items"] == last["items"]

        wait_for(same, "two censuses that are equal", 120.0)
        return last

    def right(self) -> bool:
        """Whether the slices are those of the node, and nothing is wrong with it."""
        nvml = self.node.nvml()
        nvml.initialize()
        wanted = describe(read_inventory(nvml, self.hardware.sys_root, dev_root=self.node.driver_root)).gpus
        published = as_published(self.client, self.name)
        return content(published) == content(node_slices(self.name, self.uid, wanted))

    # What happens

    def alter(self) -> None:
        names = [one.metadata.name for one in as_published(self.client, self.name)] or ["none"]
        self.log.append(self.webhooks.begin(names))

    def go_away(self) -> None:
        self.log.append("the API server is away")
        self.server.faults.refuse_connections()
        self.change_hardware()
        self.server.faults.refuse_connections(False)

    def drop_watches(self) -> None:
        self.log.append("watches end")
        self.server.drop_watches()

    def change_hardware(self) -> None:
        gpu = self.chance.randrange(8)
        self.log.append(f"GPU {gpu} is {'plugged in' if gpu in self.unplugged else 'unplugged'}")
        (self.node.plug if gpu in self.unplugged else self.node.unplug)(gpu)
        self.unplugged ^= {gpu}

    def hang(self) -> None:
        call, gpu = self.chance.choice(HANGING), self.chance.randrange(8)
        if gpu in self.unplugged:
            return
        self.log.append(f"hangs: {call} for GPU {gpu}")
        hung, returned = self.said.count(HUNG), self.said.count(RETURNED)
        self.node.inject(Fault(call, gpu=None if "System" in call else gpu, seconds=10**6))
        wait_for(lambda: self.said.count(HUNG) > hung, "the hang to be noticed")
        self.node.clear_faults()
        wait_for(lambda: self.said.count(RETURNED) > returned, "the call to return")

    def kill(self) -> None:
        self.log.append("killed")
        self.process.kill()
        self.process.wait()
        self.start()

    def mend(self) -> None:
        """All of it is over."""
        self.webhooks.end()
        self.server.faults.clear()
        self.node.clear_faults()
        for gpu in sorted(self.unplugged):
            self.node.plug(gpu)
        self.unplugged.clear()
        wait_for(self.right, "the slices of the node", 120.0)


OFTEN: list[tuple[int, Callable[[Life], None]]] = [
    (3, Life.alter),
    (1, Life.go_away),
    (2, Life.drop_watches),
    (4, Life.change_hardware),
    (2, Life.hang),
]


def live(life: Life, operations: int, *more: tuple[int, Callable[[Life], None]]) -> None:
    for number in range(operations):
        often = [*OFTEN, *more]
        (operation,) = life.chance.choices([one for _, one in often], [weight for weight, _ in often])
        operation(life)
        assert life.process.poll() is None, life.said[-4000:]
        if number % 5 == 4:
            life.mend()
    life.mend()


def test_controller_soak(tmp_path: Path) -> None:
    with embedded(tmp_path) as (server, kubeconfig, client):
        life = Life(tmp_path, server, client, kubeconfig)
        try:
            wait_for(life.right, "the first slices")
            live(life, OPERATIONS // 2, (2, Life.kill))
            for _, operation in OFTEN:  # each fills its caches
                operation(life)
            life.mend()
            before = life.census_at_rest()
            live(life, OPERATIONS)
            require_as_before(life.resource_counts, before, TOLERANCE)
            assert "Traceback" not in life.said
        except BaseException:
            print(f"SOAK_SEED={SEED}", *life.log, life.said[-6000:], sep="\n")
            raise
        finally:
            life.process.kill()
            life.process.wait()
