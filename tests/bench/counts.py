# SPDX-License-Identifier: Apache-2.0
"""Figures of what the programs do that other work on the machine does not change.

    python -m tests.bench.counts [--rounds 3] [--tree FOLDER] [--json FILE]

Of commands: the calls of functions and the loaded modules. Of the plugin: the loaded modules, its private memory, and
for each claim the calls of functions, the requests to the API server, the system calls that read and write files, and
the bytes that are written. Calls are those that `sys.setprofile` reports in all threads, of functions written in Python
and in C. `--tree` has the packages of another commit, whose programs are measured.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.gpu.simulated import SimulatedNode, load_description
from dra_driver.kube.kinds import NODES
from dra_driver.names import DRIVER_NAME
from kubeletplugin.protocol import dra_v1_pb2 as messages

from .domains import Server
from .prepare import BATCH, CLAIMS, NODE, ROOT, Bench, environment_of, resident, wait_until

COUNTED: Final = """
import atexit, json, os, runpy, signal, sys, threading

target, module, *arguments = sys.argv[1:]
calls = 0

def count(frame, event, argument):
    global calls
    if event == "call" or event == "c_call":
        calls += 1

def write(*_):
    found = {"calls": calls, "modules": len(sys.modules)}
    with open(target + ".new", "w") as file:
        json.dump(found, file)
    os.replace(target + ".new", target)

signal.signal(signal.SIGUSR1, write)
atexit.register(write)
sys.argv = [module, *arguments]
threading.setprofile(count)
sys.setprofile(count)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module, and writes its counts to a file after SIGUSR1 and at its end."""

COMMANDS: Final[dict[str, Sequence[str]]] = {
    "dra-dryrun --help": ["--help"],
    "dra-dryrun fit --help": ["fit", "--help"],
    "dra-dryrun cel": ["cel", "--built-in", "device.driver == 'gpu.nvidia.com'"],
    "dra-dryrun fit": ["fit", "--built-in", str(ROOT / "examples" / "whole-gpu.yaml")],
}
FIXED: Final = {"PYTHONHASHSEED": "0", "TERM": "dumb", "COLUMNS": "120"}
"""Environment that changes how much a program does."""

Figures = dict[str, float]

REPORT_SECONDS: Final = 10.0
"""The longest time until the plugin has written or removed the status of a claim: a plugin of another commit may write
none.
"""
_READ: Final = {
    "calls": "calls",
    "reads of files": "syscr",
    "writes of files": "syscw",
    "bytes written": "wchar",
}
"""What is counted for each claim: the names of the figures and those of the counts."""


def count_commands(tree: Path, folder: Path) -> Figures:
    """The figures of the commands for people."""
    figures: Figures = {}
    target = folder / "command.json"
    for name, arguments in COMMANDS.items():
        words = [sys.executable, "-c", COUNTED, str(target), "dra_driver.dryrun.main", *arguments]
        done = subprocess.run(words, cwd=tree, env=environment_of(tree) | FIXED, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr.decode().strip()}")
        figures |= {f"{name}: {what}": value for what, value in json.loads(target.read_text()).items()}
    return figures


class CountingBench(Bench):
    """A bench whose processes count what they do."""

    def python(self, module: str) -> list[str]:
        """The beginning of the command of a module, which counts."""
        return [sys.executable, "-c", COUNTED, str(self._target(module)), module]

    def counts_of(self, module: str, process: subprocess.Popen[bytes]) -> dict[str, int]:
        """What a process has done until now: its own counts, and those of /proc/PID/io."""
        target = self._target(module)
        target.unlink(missing_ok=True)
        process.send_signal(signal.SIGUSR1)
        wait_until(target.exists)
        counts: dict[str, int] = json.loads(target.read_text())
        lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
        return counts | {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}

    def _target(self, module: str) -> Path:
        return self.folder / f"{module}.json"


def count_claims(bench: CountingBench, server: Server, rounds: int) -> Figures:
    """The figures of the plugin: for each claim, and in the end its private memory.

    Those for each claim are the smallest of the rounds: timers of the plugin add to the others.
    """
    module = "kubeletplugin.main"
    samples: dict[str, list[float]] = {}
    with bench.plugin() as process:
        figures: Figures = {"plugin: modules": bench.counts_of(module, process)["modules"]}
        for _ in range(rounds):
            claims = bench.claims(BATCH)
            for verb in ("Prepare", "Unprepare"):
                server.counted()
                before = bench.counts_of(module, process)
                for claim in claims:
                    bench.call(verb, [claim])
                await_reports(bench, claims, written=verb == "Prepare")
                after = bench.counts_of(module, process)
                requests = sum(number for (agent, _), number in server.counted().items() if agent != "bench")
                found = {name: after[source] - before[source] for name, source in _READ.items()}
                for name, value in {**found, "requests": requests}.items():
                    samples.setdefault(f"{verb.lower()} 1 claim: {name}", []).append(value / BATCH)
        figures["plugin after its claims: private MiB"] = resident(process.pid, "RssAnon")
    return figures | {name: min(values) for name, values in samples.items()}


def await_reports(bench: CountingBench, claims: Sequence[messages.Claim], *, written: bool) -> None:
    """Wait until the plugin has written or removed the status of the claims, so that their figures contain the report.

    The plugin waits 0.25 s before it does that, and longer on a busy machine.
    """
    names = {claim.name for claim in claims}
    deadline = time.monotonic() + REPORT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.3)
        stored = [claim for claim in bench.client.list(CLAIMS).items if claim["metadata"]["name"] in names]
        reported = [any(one["driver"] == DRIVER_NAME for one in claim["status"].get("devices", ())) for claim in stored]
        if all(found == written for found in reported):
            break


def count_plugin(tree: Path, folder: Path, rounds: int, *, mig: bool) -> Figures:
    """The figures of a plugin with whole GPUs or MIG devices, with an API server of its own."""
    folder.mkdir()
    server = Server(folder)
    try:
        bench = CountingBench(folder, server.kubeconfig, mig, tree)
        bench.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        SimulatedNode.create(folder / "node", load_description(bench.hardware), NODE)
        figures = count_claims(bench, server, rounds)
    finally:
        server.stop()
    return {f"{'MIG' if mig else 'GPU'}, {name}": value for name, value in figures.items()}


def main() -> None:
    """Count everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of eight claims")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the folder with the packages that are measured")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, tree = Path(name), options.tree.absolute()
        figures = count_commands(tree, folder)
        figures |= count_plugin(tree, folder / "gpu", options.rounds, mig=False)
        figures |= count_plugin(tree, folder / "mig", options.rounds, mig=True)
    for title, figure in figures.items():
        print(f"{title:48} {figure:12.1f}")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
