# SPDX-License-Identifier: Apache-2.0
"""What a thousand nodes ask of one API server: requests, bytes, memory and time, at start and at rest.

    python -m tests.bench.scale [--nodes 1000] [--processes 4] [--rest 300] [--json FILE]

The publishers are the real ones, many in each of a few processes, and all begin at once. The nodes are Node objects
only; their devices are those of one simulated h100x8-mixed node, held once a process. The API server is kube-apiserver
with etcd from KUBEBUILDER_ASSETS, else the embedded one. Bytes are those of bodies, without headers and TLS. Figures
of one machine, which clients and server share: compare ratios.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import urllib3

from controller.node.publisher import DriverOnNode, Publisher
from dra_driver.gpu.devices import Description, describe
from dra_driver.gpu.inventory import Inventory
from dra_driver.kube.api import ApiClient, Connection, Credentials, load_credentials
from dra_driver.kube.kinds import NODES
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.device import SliceFeatures
from tests.support.apiserver import ASSETS, SLICES
from tests.support.apiserver import api_server as real_api_server
from tests.support.nodes import make_node

from .prepare import api_server as embedded_api_server
from .prepare import ended, resident, wait_until

HARDWARE = "h100x8-mixed"
SETTLE_SECONDS = 5.0  # after the last slice, for what still follows
Traffic = Counter[str]
"""Requests by verb, and bytes "sent" and "received"."""


class CountingConnection(Connection):
    """Adds to `traffic` what goes over it."""

    def __init__(self, credentials: Credentials, traffic: Traffic, lock: threading.Lock) -> None:
        super().__init__(credentials, "dra-controller/bench")
        self._traffic = traffic
        self._lock = lock

    def request(self, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
        body: bytes | None = options.get("body")
        response = super().request(method, path, **options)
        self.count(**{verb(method, path): 1, "sent": len(body or b"")})
        if options.get("stream_seconds") is None:
            self.count(received=len(response.data))
            return response
        return CountedStream(response, self)  # type: ignore[return-value]  # all of it that a watch uses

    def count(self, **amounts: int) -> None:
        """Add these."""
        with self._lock:
            self._traffic.update(amounts)


class CountedStream:
    """A response whose body is counted as it is read."""

    def __init__(self, response: urllib3.BaseHTTPResponse, connection: CountingConnection) -> None:
        self._response = response
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def stream(self, size: int) -> Iterator[bytes]:
        """The body, in pieces."""
        for chunk in self._response.stream(size):
            self._connection.count(received=len(chunk))
            yield chunk


def verb(method: str, path: str) -> str:
    """What a request does."""
    if method != "GET":
        name = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
        return f"{name} (dry run)" if "dryRun=All" in path else name
    if "watch=1" in path:
        return "watch"
    return "list" if "limit=" in path else "get"


class OneNodeForAll:
    """The devices of every node: the same."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._described: dict[SliceFeatures, Description] = {}
        self._lock = threading.Lock()

    def adopt(self, slices: Iterable[ResourceSlice]) -> None:
        """Nothing was published before."""

    def describe(self, features: SliceFeatures) -> Description:
        """The same object for the same features."""
        with self._lock:
            if features not in self._described:
                self._described[features] = describe(self._inventory, features=features)
            return self._described[features]


def make_publisher(client: ApiClient, node: str, devices: OneNodeForAll) -> Publisher:
    """The only place that knows how a publisher is made."""
    return Publisher(client, DriverOnNode(node, devices))


@dataclass(frozen=True, slots=True)
class Sample:
    """What the publishers of one process have done so far; memory in MiB."""

    traffic: Traffic
    resident: float


def work(pipe: Pipe, kubeconfig: str, nodes: list[str], inventory: Inventory) -> None:
    """A process with a publisher for each of `nodes`: begins when told to, and gives a Sample whenever asked."""
    traffic: Traffic = Counter()
    lock = threading.Lock()
    devices = OneNodeForAll(inventory)
    credentials = load_credentials(kubeconfig)
    pipe.send(Sample(Counter(), resident(os.getpid())))
    pipe.recv()
    publishers = [
        make_publisher(ApiClient(CountingConnection(credentials, traffic, lock)), node, devices) for node in nodes
    ]
    for publisher in publishers:
        threading.Thread(target=publisher.run, daemon=True).start()
    while pipe.recv():
        with lock:
            copy = Counter(traffic)
        pipe.send(Sample(copy, resident(os.getpid())))


class Workers:
    """The processes with publishers."""

    def __init__(self, kubeconfig: Path, nodes: list[str], processes: int, inventory: Inventory) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        self._processes = []
        for number in range(processes):
            here, there = context.Pipe()
            arguments = (there, str(kubeconfig), nodes[number::processes], inventory)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)
        self.empty = sum(pipe.recv().resident for pipe in self._pipes)

    def begin(self) -> None:
        """Start all publishers."""
        for pipe in self._pipes:
            pipe.send(True)

    def sample(self) -> Sample:
        """Of all of them together."""
        for pipe in self._pipes:
            pipe.send(True)
        samples = [pipe.recv() for pipe in self._pipes]
        return Sample(sum((one.traffic for one in samples), Counter()), sum(one.resident for one in samples))

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


@dataclass(frozen=True, slots=True)
class Server:
    """The API server's processes, by name."""

    pids: dict[str, int] = field(default_factory=dict)

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU time so far."""
        tick = os.sysconf("SC_CLK_TCK")
        found = {}
        for name, pid in self.pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / tick
        return found

    def resident(self) -> dict[str, float]:
        """MiB."""
        return {name: resident(pid) for name, pid in self.pids.items()}


def children() -> dict[str, int]:
    """This process's children, by the name of their program."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = stat.read_text(encoding="ascii", errors="replace").partition(" (")
            name, _, fields = rest.rpartition(")")
            if int(fields.split()[1]) == os.getpid():
                found[name] = int(pid)
    return found


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[tuple[Path, Server]]:
    """A kubeconfig of a server in processes of its own, and these."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(real_api_server(folder) if ASSETS else embedded_api_server(folder, None))
        yield path, Server(children())


class Bench:
    """One run."""

    def __init__(self, folder: Path, kubeconfig: Path, server: Server, nodes: int, processes: int) -> None:
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.server = server
        self.count = nodes
        self.nodes = [f"bench-{number:04}" for number in range(nodes)]
        self.client = ApiClient(Connection(load_credentials(str(kubeconfig)), "bench"))
        self.inventory = make_node(folder / "one", HARDWARE).inventory()
        self.processes = processes
        self.figures: dict[str, Any] = {}

    def make_nodes(self) -> None:
        """The Node objects, and one for the controller process."""

        def make(name: str) -> None:
            self.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make, ["bench-alone", *self.nodes]))

    def one_process(self) -> int:
        """A controller as it runs on a node: its memory, and how many slices a node has."""
        command = [sys.executable, "-m", "controller.main", "--node-name", "bench-alone"]
        command += ["--kubeconfig", str(self.kubeconfig), "--simulated-node", HARDWARE]
        command += ["--simulated-root", str(self.folder / "alone"), "--http-endpoint", "127.0.0.1:0"]
        command += ["--kubelet-plugins-directory-path", str(self.folder / "plugins")]
        with (self.folder / "alone.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log)
        with ended(process):
            wait_until(lambda: "published slices" in (self.folder / "alone.log").read_text(encoding="utf-8"))
            time.sleep(SETTLE_SECONDS)
            self.figures["memory of a controller process of its own, MiB"] = resident(process.pid)
        items = self.client.list(SLICES, field_selector="spec.nodeName=bench-alone").items
        self.figures["slices a node"] = len(items)
        self.figures["devices a node"] = sum(len(one["spec"].get("devices") or []) for one in items)
        self.figures["bytes of a node's slices"] = sum(len(json.dumps(one, separators=(",", ":"))) for one in items)
        return len(items)

    def cluster_controller(self) -> None:
        """The one process for the cluster: its memory once it has seen everything."""
        command = [sys.executable, "-m", "controller.cluster.main", "--kubeconfig", str(self.kubeconfig)]
        with (self.folder / "cluster.log").open("wb") as log:
            process = subprocess.Popen([*command, "--http-endpoint", "127.0.0.1:0"], stderr=log)
        with ended(process):
            time.sleep(2 * SETTLE_SECONDS)
            self.figures["memory of the cluster controller, MiB"] = resident(process.pid)

    def slices(self) -> int:
        """How many there are, without reading them."""
        page = self.client.get_path(f"{SLICES.path()}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    def start(self, workers: Workers, wanted: int) -> None:
        """All nodes at once, until every slice is there."""
        cpu = self.server.cpu()
        began = time.monotonic()
        workers.begin()
        while (there := self.slices()) < wanted:
            print(f"\r{there} of {wanted} slices after {time.monotonic() - began:.0f} s", end="", file=sys.stderr)
            if time.monotonic() - began > 1800:
                raise SystemExit("\nthe slices do not come")
            time.sleep(0.5)
        took = time.monotonic() - began
        print(f"\rall {wanted} slices after {took:.0f} s", " " * 20, file=sys.stderr)
        time.sleep(SETTLE_SECONDS)
        sample = workers.sample()
        self.figures["until all slices are there, s"] = round(took, 1)
        self.report("at start, a node", sample.traffic, 1 / self.count)
        self.report_cpu("at start", cpu)
        shared = (sample.resident - workers.empty) / self.count
        self.figures["memory a node in a shared process, MiB"] = round(shared, 2)

    def rest(self, workers: Workers, seconds: float) -> None:
        """Nothing happens, for a while."""
        before, cpu, began = workers.sample().traffic, self.server.cpu(), time.monotonic()
        time.sleep(seconds)
        after, took = workers.sample(), time.monotonic() - began
        traffic = Counter(after.traffic)
        traffic.subtract(before)
        self.report("at rest, a node and hour", traffic, 3600 / took / self.count)
        self.report_cpu("at rest", cpu, took)
        for name, size in self.server.resident().items():
            self.figures[f"memory of {name}, MiB"] = size

    def report(self, when: str, traffic: Traffic, factor: float) -> None:
        """Traffic times `factor`."""
        requests = {name: round(amount * factor, 2) for name, amount in sorted(traffic.items()) if amount}
        for name in ("sent", "received"):
            self.figures[f"{when}: bytes {name}"] = round(requests.pop(name, 0))
        self.figures[f"{when}: requests"] = {"all": round(sum(requests.values()), 2), **requests}

    def report_cpu(self, when: str, before: dict[str, float], seconds: float = 0.0) -> None:
        """CPU time of the server since `before`: in seconds, or in cores where it took `seconds`."""
        for name, now in self.server.cpu().items():
            used = now - before[name]
            title = f"{when}: CPU of {name}, " + ("cores" if seconds else "s")
            self.figures[title] = round(used / seconds, 3) if seconds else round(used, 1)


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4, help="among which the publishers are divided")
    parser.add_argument("--rest", type=float, default=300, help="seconds of rest that are measured")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="bench-") as name, api_server(Path(name)) as (kubeconfig, server):
        bench = Bench(Path(name), kubeconfig, server, options.nodes, options.processes)
        bench.make_nodes()
        each = bench.one_process()
        workers = Workers(kubeconfig, bench.nodes, options.processes, bench.inventory)
        try:
            bench.start(workers, each * (options.nodes + 1))
            bench.rest(workers, options.rest)
            bench.cluster_controller()
        finally:
            workers.end()
    print(f"{os.cpu_count()} CPUs, {options.nodes} nodes of {HARDWARE} in {options.processes} processes")
    for title, figure in bench.figures.items():
        print(f"{title:52} {figure}")
    if options.json:
        Path(options.json).write_text(json.dumps(bench.figures, indent=1))


if __name__ == "__main__":
    main()
