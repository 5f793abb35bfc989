# SPDX-License-Identifier: Apache-2.0
"""How long the node processes take: start to first slice, prepare and unprepare over gRPC, memory.

    python -m tests.bench.prepare [--kubeconfig FILE] [--calls 200] [--rounds 25] [--mig] [--tree FOLDER] [--json FILE]

Real processes, real gRPC on a unix socket, claims that really exist in an API server: the embedded one in a process of
its own, or the cluster of --kubeconfig (a scratch one: objects are made and deleted there). Only the GPUs are
simulated, and their calls take no time. Figures of one machine; compare ratios. `--tree` has the packages of another
commit, whose processes are measured.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from dra_driver.gpu.simulated import SimulatedNode, load_description
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient, ApiError, Connection, load_credentials
from dra_driver.kube.kinds import NODES, claims_of, slices_of
from dra_driver.kube.resource.codec import V1
from dra_driver.names import DRIVER_NAME
from kubeletplugin.protocol import dra_v1_pb2 as messages

NODE = "bench-node"
CLAIMS = claims_of(V1)
SLICES = slices_of(V1)
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
BATCH = 8
ROOT = Path(__file__).parents[2]
CREATION_SECONDS = 0.05
IMAGE_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}
"""What the Dockerfile sets that changes memory."""
SERVER = """
import signal
import sys
from pathlib import Path
from dra_driver.sandbox.apiserver import ApiServer
with ApiServer() as server:
    server.write_kubeconfig(Path(sys.argv[1]))
    signal.pause()
"""


class Bench:
    """One run: a scratch folder, a client of the API server, a stub of the plugin. `tree` has the measured packages."""

    def __init__(self, folder: Path, kubeconfig: Path, mig: bool, tree: Path = ROOT) -> None:
        self.folder = folder
        self.tree = tree
        self.kubeconfig = kubeconfig
        self.client = ApiClient(Connection(load_credentials(str(kubeconfig)), "bench"))
        self.hardware = "h100x8-mig" if mig else "h100x8"
        self.devices = [f"gpu-{i}-mig-1g10gb-19-0" if mig else f"gpu-{i}" for i in range(BATCH)]
        self.socket = folder / "plugins" / DRIVER_NAME / "dra.sock"
        self.figures: dict[str, Any] = {}
        self.config: list[Any] = []  # of the allocations
        self.made = 0

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a node process."""
        command = [*self.python(module), "--node-name", NODE, "--kubeconfig", str(self.kubeconfig)]
        command += ["--simulated-node", self.hardware, "--simulated-root", str(self.folder / "node"), *arguments]
        with (self.folder / f"{module}.log").open("ab") as log:
            environment = environment_of(self.tree) | IMAGE_ENVIRONMENT
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.tree, env=environment)

    def python(self, module: str) -> list[str]:
        """The beginning of the command of a module."""
        return [sys.executable, "-m", module]

    def start_controller(self) -> None:
        """From exec to the first slice, and what the process holds two seconds later. As on a real node, the hardware
        is there before.
        """
        SimulatedNode.create(self.folder / "node", load_description(self.hardware), NODE)
        began = time.perf_counter()
        process = self.start("controller.main")
        with ended(process):
            wait_until(lambda: self.client.list(SLICES, field_selector=f"spec.nodeName={NODE}").items)
            self.figures["start to first slice, ms"] = round((time.perf_counter() - began) * 1000, 1)
            time.sleep(2)
            self.memory_of("controller", process)

    @contextlib.contextmanager
    def plugin(self) -> Iterator[subprocess.Popen[bytes]]:
        """The plugin, from exec until its socket answers to the end."""
        began = time.perf_counter()
        folders = {
            "--kubelet-registrar-directory-path": "registry",
            "--kubelet-plugins-directory-path": "plugins",
            "--cdi-root": "cdi",
        }
        arguments = [text for flag, name in folders.items() for text in (flag, str(self.folder / name))]
        process = self.start("kubeletplugin.main", *arguments)
        with ended(process):
            self.channel = grpc.insecure_channel(f"unix:{self.socket}")
            wait_until(self.socket.exists)
            grpc.channel_ready_future(self.channel).result(timeout=30)
            self.figures["start to open socket, ms"] = round((time.perf_counter() - began) * 1000, 1)
            wait_until(lambda: "GPUs are ready" in (self.folder / "kubeletplugin.main.log").read_text())
            time.sleep(2)
            self.memory_of("plugin before the first claim", process)
            yield process
            self.channel.close()

    def claims(self, count: int) -> list[messages.Claim]:
        """New claims in the API server, each allocated one of the eight devices in turn."""
        made = []
        for index in range(count):
            name = f"bench-{self.made}"
            self.made += 1
            spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
            claim = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
            stored = self.client.create(CLAIMS, claim, "default")
            result = {"request": "gpu", "driver": DRIVER_NAME, "pool": NODE, "device": self.devices[index % BATCH]}
            stored["status"] = {"allocation": {"devices": {"results": [result], "config": self.config}}}
            self.client.update(CLAIMS, stored, subresource="status")
            made.append(messages.Claim(namespace="default", name=name, uid=stored["metadata"]["uid"]))
        return made

    def call(self, verb: str, claims: Sequence[messages.Claim], channel: grpc.Channel | None = None) -> float:
        """One call; milliseconds."""
        request = getattr(messages, f"Node{verb}ResourcesRequest")(claims=claims)
        method = (channel or self.channel).unary_unary(
            f"/{SERVICE}/Node{verb}Resources",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(messages, f"Node{verb}ResourcesResponse").FromString,
        )
        began = time.perf_counter()
        answer = method(request, timeout=60)
        took = (time.perf_counter() - began) * 1000
        for claim in claims:
            if answer.claims[claim.uid].error:
                raise SystemExit(f"{verb} of {claim.name}: {answer.claims[claim.uid].error}")
        return took

    def one_by_one(self, calls: int) -> None:
        """Single claims."""
        for claim in self.claims(BATCH):  # warm up
            self.call("Prepare", [claim])
            self.call("Unprepare", [claim])
        prepare, unprepare = [], []
        for claim in self.claims(calls):
            prepare.append(self.call("Prepare", [claim]))
            unprepare.append(self.call("Unprepare", [claim]))
        self.report("prepare 1 claim", prepare)
        self.report("unprepare 1 claim", unprepare)

    def in_one_call(self, rounds: int) -> None:
        """Eight claims a call."""
        prepare, unprepare = [], []
        for _ in range(rounds):
            claims = self.claims(BATCH)
            prepare.append(self.call("Prepare", claims))
            unprepare.append(self.call("Unprepare", claims))
        self.report("prepare 8 claims in one call", prepare)
        self.report("unprepare 8 claims in one call", unprepare)

    def at_once(self, rounds: int) -> None:
        """Eight calls at the same time, each with one claim and a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(f"unix:{self.socket}", options) for _ in range(BATCH)]
        results: dict[str, list[float]] = {"Prepare": [], "Unprepare": []}
        with ThreadPoolExecutor(BATCH) as pool:
            for _ in range(rounds):
                claims = self.claims(BATCH)
                for verb, walls in results.items():
                    barrier = threading.Barrier(BATCH + 1)

                    def one(index: int, verb: str = verb, claims: Any = claims, barrier: Any = barrier) -> None:
                        barrier.wait()
                        self.call(verb, [claims[index]], channels[index])

                    futures = [pool.submit(one, index) for index in range(BATCH)]
                    barrier.wait()
                    began = time.perf_counter()
                    for future in futures:
                        future.result()
                    walls.append((time.perf_counter() - began) * 1000)
        self.report("prepare, 8 calls at once, until all are done", results["Prepare"])
        self.report("unprepare, 8 calls at once, until all are done", results["Unprepare"])

    def slow_creation(self, rounds: int) -> None:
        """Eight claims on eight GPUs at once while making an instance takes its time, against one claim alone."""
        node = SimulatedNode(self.folder / "node")
        node.inject(Fault("nvmlDeviceCreateGpuInstanceWithPlacement", seconds=CREATION_SECONDS))
        alone, together = [], []
        for _ in range(rounds):
            claims = self.claims(BATCH)
            alone.append(self.call("Prepare", claims[:1]))
            self.call("Unprepare", claims[:1])
            together.append(self.call("Prepare", claims))
            self.call("Unprepare", claims)
        node.clear_faults()
        title = f"with {CREATION_SECONDS * 1000:.0f} ms to make an instance: prepare"
        self.report(f"{title} 1 claim", alone)
        self.report(f"{title} 8 claims", together)

    def memory(self, process: subprocess.Popen[bytes], first: int, last: int) -> None:
        """What the plugin holds after some cycles, and after many more."""
        claim = self.claims(1)
        for cycle in range(1, last + 1):
            self.call("Prepare", claim)
            self.call("Unprepare", claim)
            if cycle in (first, last):
                self.memory_of(f"plugin after {cycle} cycles", process)

    def memory_of(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """Keep what a process has resident, and how much of that is its own (anonymous)."""
        self.figures[f"{name}: resident, MiB"] = resident(process.pid)
        self.figures[f"{name}: anonymous, MiB"] = resident(process.pid, "RssAnon")

    def report(self, name: str, milliseconds: list[float]) -> None:
        """Print and keep percentiles."""
        ordered = sorted(milliseconds)
        p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
        self.figures[name] = {"n": len(ordered), "p50": round(statistics.median(ordered), 2), "p99": round(p99, 2)}

    def clean(self) -> None:
        """Delete what was made in the API server."""
        for index in range(self.made):
            with contextlib.suppress(ApiError):
                self.client.delete(CLAIMS, f"bench-{index}", "default")
        for one in self.client.list(SLICES, field_selector=f"spec.nodeName={NODE}").items:
            self.client.delete(SLICES, one["metadata"]["name"])
        self.client.delete(NODES, NODE)


def environment_of(tree: Path) -> dict[str, str]:
    """The environment in which Python imports the packages of a tree."""
    return os.environ | {"PYTHONPATH": str(tree)}


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the process at the end, whatever happens."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for a condition, looking every 2 ms."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing happened for {seconds} s")
        time.sleep(0.002)


def resident(pid: int, field: str = "VmRSS") -> float:
    """A field of /proc/PID/status in MiB: VmRSS, or RssAnon, which is without the pages of files."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in status if line.startswith(f"{field}:"))
    return round(int(line.split()[1]) / 1024, 1)


@contextlib.contextmanager
def api_server(folder: Path, given: str | None) -> Iterator[Path]:
    """A kubeconfig of the given cluster, or of an embedded server in a process of its own."""
    if given:
        yield Path(given).absolute()
        return
    kubeconfig = folder / "kubeconfig"
    with ended(subprocess.Popen([sys.executable, "-c", SERVER, str(kubeconfig)])):
        wait_until(kubeconfig.exists)
        yield kubeconfig


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubeconfig", help="a scratch cluster; an embedded API server without it")
    parser.add_argument("--calls", type=int, default=200, help="single-claim calls")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of eight claims")
    parser.add_argument("--cycles", type=int, default=1000, help="prepared and unprepared again, for the memory")
    parser.add_argument("--mig", action="store_true", help="MIG devices instead of whole GPUs")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the folder with the packages that are measured")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name, api_server(Path(name), options.kubeconfig) as kubeconfig:
        bench = Bench(Path(name), kubeconfig, options.mig, options.tree.absolute())
        bench.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        try:
            bench.start_controller()
            with bench.plugin() as process:
                bench.one_by_one(options.calls)
                bench.in_one_call(options.rounds)
                bench.at_once(options.rounds)
                if options.mig:
                    bench.slow_creation(5)
                bench.memory(process, 100, options.cycles)
        finally:
            bench.clean()
    print(f"{os.cpu_count()} CPUs, {'MIG devices' if options.mig else 'whole GPUs'}, simulated")
    for title, figure in bench.figures.items():
        text = (
            f"p50 {figure['p50']:8.2f} ms   p99 {figure['p99']:8.2f} ms   n={figure['n']}"
            if isinstance(figure, dict)
            else f"{figure:8.1f}"
        )
        print(f"{title:48} {text}")
    if options.json:
        Path(options.json).write_text(json.dumps(bench.figures, indent=1))


if __name__ == "__main__":
    main()
