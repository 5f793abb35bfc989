# SPDX-License-Identifier: Apache-2.0
"""What each part of a claim's way through the plugin costs: time, processor time, system calls, and waits.

    python -m tests.bench.budget [--rounds 12] [--mig] [--no-strace]

The same processes as in `tests.bench.prepare`. The functions of `PARTS` are measured inside of the plugin, each without
the parts that it calls, so the parts of a table add up to its total. Measuring takes about 3 µs for each call of one,
so the totals are larger than those of `tests.bench.prepare`. Of eight claims, parts of several run at the same time, so
their times on the clock add up to more than the call takes. System calls are counted in a second run under strace, if
there is one. The last rows are the floor: what an empty call, a read of the API server and a file cost by themselves.
"""

import argparse
import functools
import importlib
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from dra_driver.gpu.simulated import SimulatedNode, load_description
from dra_driver.kube.kinds import NODES

from .prepare import BATCH, CLAIMS, IMAGE_ENVIRONMENT, NODE, Bench, api_server, wait_until

_TRACED_ROUNDS: Final = 3

REST: Final = "gRPC's threads, starts of threads"
HAND_OVER: Final = "hand-over to the GPU's thread"
ON_THREAD: Final = "work on the GPU's thread"

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "the call: messages, threads of claims": (
        "kubelet.service:DraService._prepare_all",
        "kubelet.service:DraService._unprepare_all",
    ),
    "answer, metrics, report of one claim": (
        "kubelet.service:DraService._prepare",
        "kubelet.service:DraService._unprepare",
    ),
    "engine": ("claims.engine:Engine.prepare", "claims.engine:Engine.unprepare"),
    "locks": ("claims.locks:KeyedLocks.acquire", "claims.locks:KeyedLocks.release"),
    "API server: request and answer": ("claims.reader:ClaimReader.get",),
    "API server: decoding": ("claims.reader:decode_claim",),
    "plan: look at the node": ("drivers:GpuDriver.look",),
    "plan: decide": ("drivers:plan_claim",),
    "changes of earlier claims": ("claims.sweep:Sweep.restore_for", "claims.changes:Changes.leaves_something"),
    HAND_OVER: ("node.node:Node.run",),
    ON_THREAD: ("claims.changes:Changes._do", "claims.changes:Changes._undo", "claims.changes:_are_done"),
    "records: look": ("claims.cache:RecordCache.get", "claims.cache:RecordCache.all"),
    "records: write": ("claims.cache:RecordCache.save", "claims.cache:RecordCache.close"),
    "CDI spec": ("claims.specs:ClaimSpecs.write", "claims.specs:ClaimSpecs.remove"),
    "metadata files": (
        "claims.metadata:ClaimMetadata.edits",
        "claims.metadata:ClaimMetadata.remove",
        "claims.answers:prepared_devices",
    ),
    "log lines": ("logging:Handler.handle",),
}
"""Functions by the name of their part. Modules are those of `kubeletplugin`, or have a full name."""

MARK: Final = re.compile(r'access\("/budget/(begin|end)/(\d+)"')
RESET: Final = "/budget/reset"
START: Final = "/budget/start"


@dataclass
class Cost:
    """Nanoseconds, and numbers."""

    calls: int = 0
    wall: int = 0
    cpu: int = 0
    waits: int = 0
    system_calls: int = 0

    def __iadd__(self, other: "Cost") -> "Cost":
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


# In the plugin's process


class Probe:
    """Measures the parts, each without those that it calls. Whoever writes to a FIFO gets the costs since the last time
    in the file `target`. With `marks`, system calls tell strace where parts begin and end.
    """

    def __init__(self, target: Path, marks: bool) -> None:
        self._target = target
        self._marks = marks
        self._own = threading.local()
        self._costs: dict[str, list[int]] = {part: [0, 0, 0, 0] for part in PARTS}
        self._began = self._process()
        for index, (part, functions) in enumerate(PARTS.items()):
            for path in functions:
                self._wrap(index, part, path)
        os.mkfifo(asked(target))
        threading.Thread(target=self._serve, name="costs", daemon=True).start()

    def _serve(self) -> None:
        """Write the costs whenever somebody opens the FIFO."""
        while True:
            asked(self._target).read_bytes()
            self._write()

    def _wrap(self, index: int, part: str, path: str) -> None:
        module, _, name = path.partition(":")
        first = module.partition(".")[0]
        is_full = first in ("dra_driver", "logging")
        owner: Any = importlib.import_module(module if is_full else f"kubeletplugin.{module}")
        *classes, name = name.split(".")
        for each in classes:
            owner = getattr(owner, each)
        work = getattr(owner, name)
        measured = functools.wraps(work)(functools.partial(self._measure, index, part, work))

        @functools.wraps(work)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            return measured(*arguments, **named)

        setattr(owner, name, wrapped)
        if not classes:  # functions that other modules have imported
            for other in list(sys.modules.values()):
                if getattr(other, name, None) is work:
                    setattr(other, name, wrapped)

    def _measure(self, index: int, part: str, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        stack = self._own.__dict__.setdefault("stack", [])
        if self._marks:
            os.access(f"/budget/begin/{index}", 0)
        self._charge(stack)
        stack.append(part)
        try:
            return work(*arguments, **named)
        finally:
            self._charge(stack)
            self._costs[stack.pop()][0] += 1
            if self._marks:
                os.access(f"/budget/end/{index}", 0)

    def _charge(self, stack: list[str]) -> None:
        """Charge the time since the last change to the part that ran. Under strace, system calls would only disturb."""
        if self._marks:
            return
        now = time.perf_counter_ns(), time.thread_time_ns(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        if stack:
            cost, before = self._costs[stack[-1]], self._own.last
            for place in range(3):
                cost[place + 1] += now[place] - before[place]
        self._own.last = now

    @staticmethod
    def _process() -> tuple[int, int]:
        return time.process_time_ns(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw

    def _write(self) -> None:
        if self._marks:
            os.access(RESET, 0)
        cpu, waits = (now - before for now, before in zip(self._process(), self._began, strict=True))
        found = {part: Cost(*cost).__dict__ for part, cost in self._costs.items()}
        rest = cpu - sum(cost[2] for cost in self._costs.values()), waits - sum(c[3] for c in self._costs.values())
        found[REST] = Cost(0, 0, *rest).__dict__
        for cost in self._costs.values():
            cost[:] = [0, 0, 0, 0]
        temporary = self._target.with_suffix(".new")
        temporary.write_text(json.dumps(found))
        temporary.replace(self._target)
        if self._marks:
            os.access(START, 0)
        self._began = self._process()


def asked(target: Path) -> Path:
    """The FIFO by which a probe is asked for the file `target`."""
    return target.with_suffix(".ask")


def plugin(target: str, marks: str, *arguments: str) -> None:
    """Run the plugin with a probe."""
    from kubeletplugin import serve  # noqa: F401 - everything that is measured
    from kubeletplugin.main import main as run

    Probe(Path(target), marks == "marks")
    run(arguments)


# The measuring process


class BudgetBench(Bench):
    """A bench whose plugin has a probe, and runs under strace if `trace` is a file."""

    def __init__(self, folder: Path, kubeconfig: Path, mig: bool, trace: Path | None) -> None:
        super().__init__(folder, kubeconfig, mig)
        self.trace = trace
        self.target = folder / "costs.json"
        self.totals: dict[str, tuple[dict[str, Cost], list[float]]] = {}
        self.system_calls: dict[str, Counter[str]] = defaultdict(Counter)
        self.floor: dict[str, float] = {}
        self._order: list[str] = []  # what was measured between two resets

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", __spec__.name, "plugin", str(self.target), "marks" if self.trace else ""]
        command += ["--node-name", NODE, "--kubeconfig", str(self.kubeconfig), "--simulated-node", self.hardware]
        command += ["--simulated-root", str(self.folder / "node"), *arguments]
        if self.trace is not None:
            command = ["strace", "-f", "-qq", "-o", str(self.trace), *command]
        with (self.folder / f"{module}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | IMAGE_ENVIRONMENT)

    def pid(self, process: subprocess.Popen[bytes]) -> int:
        """The plugin, which may be a child of strace."""
        if self.trace is None:
            return process.pid
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    def costs(self, title: str = "") -> dict[str, Cost]:
        """The costs of what has this title: everything since the last time."""
        time.sleep(0.03)  # threads finish what follows the answer
        self.target.unlink(missing_ok=True)
        self._order.append(title)
        asked(self.target).write_bytes(b"?")
        wait_until(self.target.exists)
        return {part: Cost(**cost) for part, cost in json.loads(self.target.read_text()).items()}

    def measure(self, rounds: int) -> None:
        """Measure all ways of calling."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.insecure_channel(f"unix:{self.socket}", options) for _ in range(BATCH)]
        with ThreadPoolExecutor(BATCH) as pool:

            def alone(verb: str, claims: Any) -> float:
                return sum(self.call(verb, [claim]) for claim in claims)

            def together(verb: str, claims: Any) -> float:
                return self.call(verb, claims)

            def at_once(verb: str, claims: Any) -> float:
                began = time.perf_counter()
                list(pool.map(lambda claim, channel: self.call(verb, [claim], channel), claims, channels))
                return (time.perf_counter() - began) * 1000

            for title, call in (("1 claim", alone), ("8 claims in one call", together), ("8 calls at once", at_once)):
                for measured in (0, rounds):  # the first round starts threads and connections
                    self._rounds(title, call, max(1, measured), keep=bool(measured))

    def _rounds(
        self,
        title: str,
        call: Callable[[str, Any], float],
        rounds: int,
        *,
        keep: bool,
    ) -> None:
        for _ in range(rounds):
            claims = self.claims(BATCH)
            self.costs()
            for verb in ("Prepare", "Unprepare"):
                took = call(verb, claims)
                name = f"{verb.lower()} {title}" if keep else ""
                costs = self.costs(name)
                if keep:
                    totals, walls = self.totals.setdefault(name, (defaultdict(Cost), []))
                    walls.append(took)
                    for part, cost in costs.items():
                        totals[part] += cost

    def count(self, trace: Path) -> None:
        """Count the system calls in the output of strace."""
        for title, counted in zip(self._order, count_system_calls(trace), strict=False):
            self.system_calls[title] += counted


def count_system_calls(trace: Path) -> Iterator[Counter[str]]:
    """The system calls of each part between a mark START and the next RESET, by the names in PARTS."""
    names = list(PARTS)
    stacks: dict[str, list[str]] = defaultdict(list)
    found: Counter[str] = Counter()
    with trace.open(errors="replace") as lines:
        for line in lines:
            thread, _, call = line.partition(" ")
            if "resumed>" in call or call.lstrip().startswith(("---", "+++")):
                continue
            if RESET in call:
                yield found
            elif START in call:
                found = Counter()
            elif mark := MARK.search(call):
                if mark[1] == "begin":
                    stacks[thread].append(names[int(mark[2])])
                else:
                    stacks[thread].pop()
            else:
                found[stacks[thread][-1] if stacks[thread] else REST] += 1


def floor(bench: Bench, calls: int = 200) -> dict[str, float]:
    """What cannot be less, in microseconds: an empty call, a read from the API server, a file that is renamed."""
    claim = bench.claims(1)[0]
    file = bench.folder / "floor"

    def write() -> None:
        file.with_suffix(".new").write_bytes(b"x" * 500)
        file.with_suffix(".new").replace(file)
        file.unlink()

    works: dict[str, Callable[[], object]] = {
        "an empty gRPC call": lambda: bench.call("Prepare", []),
        "a claim read from the API server": lambda: bench.client.get(CLAIMS, claim.name, claim.namespace),
        "a file of 500 bytes: written, renamed, removed": write,
    }
    return {name: _median(work, calls) for name, work in works.items()}


def _median(work: Callable[[], object], calls: int) -> float:
    work()
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1e6)
    return round(statistics.median(found))


def run(options: argparse.Namespace, rounds: int, trace: bool) -> BudgetBench:
    """One run of the plugin. Its costs are in `totals` of the result."""
    with tempfile.TemporaryDirectory(prefix="budget-") as name, api_server(Path(name), None) as kubeconfig:
        folder = Path(name)
        bench = BudgetBench(folder, kubeconfig, options.mig, folder / "trace" if trace else None)
        bench.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        SimulatedNode.create(folder / "node", load_description(bench.hardware), NODE)
        with bench.plugin() as process:
            bench.measure(rounds)
            bench.floor = {} if trace else floor(bench)
            os.kill(bench.pid(process), signal.SIGTERM)  # strace ignores it
        if bench.trace is not None:
            bench.count(bench.trace)
    return bench


def print_table(title: str, costs: Mapping[str, Cost], walls: list[float], claims: int) -> None:
    """A table of the costs of one claim."""
    print(f"\n{title}: median {statistics.median(walls) * 1000 * len(walls) / claims:.0f} µs for each claim")
    print(f"{'each claim':40} {'wall, µs':>9} {'CPU, µs':>9} {'system calls':>13} {'waits':>6}")
    total = Cost()
    for part in (*PARTS, REST):
        cost = costs[part]
        total += cost
        _print_row(part, cost, claims)
    _print_row("total", total, claims)


def _print_row(name: str, cost: Cost, claims: int) -> None:
    wall, cpu = (f"{value / 1000 / claims:.0f}" for value in (cost.wall, cost.cpu))
    print(f"{name:40} {wall:>9} {cpu:>9} {cost.system_calls / claims:>13.1f} {cost.waits / claims:>6.1f}")


def main() -> None:
    """Run everything and print the tables."""
    if sys.argv[1:2] == ["plugin"]:
        plugin(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of eight claims for each way of calling")
    parser.add_argument("--mig", action="store_true", help="MIG devices instead of whole GPUs")
    parser.add_argument("--no-strace", action="store_true", help="count no system calls")
    options = parser.parse_args()
    bench = run(options, options.rounds, trace=False)
    traced = None if options.no_strace or shutil.which("strace") is None else run(options, _TRACED_ROUNDS, trace=True)
    print(f"{os.cpu_count()} CPUs, {'MIG devices' if options.mig else 'whole GPUs'}, simulated; the plugin's parts")
    for title, (costs, walls) in bench.totals.items():
        if traced is not None:
            for part, number in traced.system_calls[title].items():
                costs[part].system_calls = round(number * options.rounds / _TRACED_ROUNDS)
        costs[HAND_OVER].wall -= costs[ON_THREAD].wall  # the caller waits meanwhile
        print_table(title, costs, walls, len(walls) * BATCH)
    print("\nthe floor, µs, median")
    for name, microseconds in bench.floor.items():
        print(f"{name:40} {microseconds:>9.0f}")


if __name__ == "__main__":
    main()
