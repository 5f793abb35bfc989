# SPDX-License-Identifier: Apache-2.0
"""How long claims that configure sharing take, and what the supervision of MPS daemons holds.

    python -m tests.bench.sharing [--calls 20] [--rounds 5] [--driver 615.71.09]

As tests.bench.prepare, with dra-mps beside the plugin. The programs nvidia-smi and nvidia-cuda-mps-control are
stand-ins (a shell script, and Python), so their own time is measured apart: `a daemon's own start` is from exec until
it answers a command, without this driver. `--driver` is the version of the simulated driver; 615 and newer have MPS
protocol 3.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_driver.gpu.simulated import load_description
from dra_driver.kube.kinds import NODES
from dra_driver.names import DRIVER_NAME
from tests.support.claims import config_of, mps, time_slicing
from tests.support.hardware import ControlledNode
from tests.support.mps import MpsProcess

from .prepare import BATCH, NODE, Bench, api_server, resident

_DAEMON_STARTS = 10


class SharingBench(Bench):
    """A bench whose claims configure sharing."""

    def run(self, title: str, sharing: Any, calls: int, rounds: int) -> None:
        """Single claims, and eight at once."""
        self.config = config_of(sharing, self.devices)
        figures, self.figures = self.figures, {}
        self.one_by_one(calls)
        self.at_once(rounds)
        self.figures = {**figures, **{f"{title}: {name}": figure for name, figure in self.figures.items()}}


def own_start(node: ControlledNode, folder: Path, start: Sequence[str], ask: Sequence[str], text: str) -> float:
    """Milliseconds from the exec of a daemon until it answers a command."""
    program = str(node.driver_root / "usr/bin/nvidia-cuda-mps-control")
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder)}
    began = time.perf_counter()
    with subprocess.Popen([program, *start], env=environment, stdin=subprocess.DEVNULL) as daemon:
        while not (folder / "control").exists():
            time.sleep(0.001)
        subprocess.run([program, *ask], input=text.encode(), env=environment, check=True, stdout=subprocess.DEVNULL)
        took = (time.perf_counter() - began) * 1000
        daemon.kill()
    (folder / "control").unlink()
    return took


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20, help="single-claim calls")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of eight claims")
    parser.add_argument("--driver", help="the version of the simulated driver")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name, api_server(Path(name), None) as kubeconfig:
        bench = SharingBench(Path(name), kubeconfig, mig=False)
        bench.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        node = ControlledNode.create(Path(name) / "node", load_description(bench.hardware), NODE)
        if options.driver:
            node.load_driver(options.driver)
        start, ask, text = ["-f"], list[str](), "get_default_active_thread_percentage\n"
        if options.driver and int(options.driver.partition(".")[0]) >= 615:
            start, ask, text = ["-f", "-p", "3", "-m"], ["server", "list", "--format=csv,noheader"], ""
        starts = [own_start(node, Path(name) / "pipe", start, ask, text) for _ in range(_DAEMON_STARTS)]
        state = Path(name) / "plugins" / DRIVER_NAME
        state.mkdir(parents=True)
        supervisor = MpsProcess(state, node, Path(name) / "mps.log", fresh=True).start()
        bench.figures["dra-mps before the first claim: resident, MiB"] = resident(supervisor.pid)
        bench.figures["dra-mps before the first claim: anonymous, MiB"] = resident(supervisor.pid, "RssAnon")
        with bench.plugin():
            bench.run("no sharing", None, options.calls, options.rounds)
            bench.run("time-slicing", time_slicing("Long"), options.calls, options.rounds)
            bench.run("MPS", mps(defaultActiveThreadPercentage=50), options.calls, options.rounds)
            for claim in bench.claims(BATCH):
                bench.call("Prepare", [claim])
            bench.figures[f"dra-mps with {BATCH} claims: resident, MiB"] = resident(supervisor.pid)
            bench.figures[f"dra-mps with {BATCH} claims: anonymous, MiB"] = resident(supervisor.pid, "RssAnon")
        supervisor.stop()
        bench.clean()
    bench.figures["a daemon's own start, ms"] = round(statistics.median(starts), 1)
    for title, figure in bench.figures.items():
        text = f"p50 {figure['p50']:8.2f}   p99 {figure['p99']:8.2f}" if isinstance(figure, dict) else f"{figure:8.1f}"
        print(f"{title:64} {text}")


if __name__ == "__main__":
    main()
