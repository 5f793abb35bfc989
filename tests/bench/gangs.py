# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.gangs [brute|decided|times] [COUNT]`: gangs against brute force, answers, times.

`brute` compares the joint search with an oracle on random gangs of 1 to 4 pods on 1 to 3 nodes (by default 20,000):
never a wrong proof, never an assignment that the rules refuse. `decided` counts the answers for random gangs of 8 to 64
pods on 4 to 32 nodes (by default 1,000). `times` asks about gangs of 256 pods on 1,000 nodes of 8 GPUs, and measures
CPU time. Without an argument, all three run.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dra_driver.scheduler.allocator import Cluster, Features
from dra_driver.scheduler.cel import compile_selector
from dra_driver.scheduler.gangs import SECONDS, Gang, JointAnswer, assign, schedule
from dra_driver.scheduler.pods import Snapshot
from tests.scheduler.gangs.build import cluster, gang, gpus, halves, member, node, wanting, whole_or_half
from tests.scheduler.gangs.random_gangs import built, exists, mistakes, random_case

T = TypeVar("T")

FEATURES = Features()
NODES = 1000
PODS = 256


def brute(count: int = 20_000) -> None:
    """Compares answers with those of brute force. Ends the program at the first mistake."""
    found: Counter[str] = Counter()
    for seed in range(count):
        case = random_case(seed, (1, 3), (1, 4), (1, 2))
        snapshot, wanted = built(case)
        answer = assign(wanted, snapshot, FEATURES)
        kind = _kind(answer)
        found[kind] += 1
        wrong = mistakes(case, answer.placements) if answer.placements else []
        if kind == "unknown" and exists(case):
            found["unknown, and an assignment exists"] += 1
        if wrong or (answer.proof and exists(case)):
            sys.exit(f"seed {seed}: {kind}: {'; '.join(wrong) or answer.proof}")
        is_scheduled = schedule(wanted, snapshot, FEATURES).is_scheduled
        found["refused by the scheduler, and an assignment exists"] += bool(answer.placements) and not is_scheduled
        if is_scheduled and answer.proof:
            sys.exit(f"seed {seed}: the scheduler places what is proved not to fit: {answer.proof}")
        if (seed + 1) % 1000 == 0:
            print(f"{seed + 1} gangs: {dict(sorted(found.items()))}", flush=True)


def decided(count: int = 1000) -> None:
    """Counts the gangs that are decided within the time limit."""
    found: Counter[str] = Counter()
    longest = 0.0
    for seed in range(count):
        case = random_case(1_000_000 + seed, (4, 32), (8, 64), (2, 8))
        snapshot, wanted = built(case)
        start = time.perf_counter()
        answer = assign(wanted, snapshot, FEATURES, SECONDS)
        longest = max(longest, time.perf_counter() - start)
        found[_kind(answer)] += 1
        if answer.placements and (wrong := mistakes(case, answer.placements)):
            sys.exit(f"seed {seed}: {'; '.join(wrong)}")
        if (seed + 1) % 100 == 0:
            rate = 100 * (1 - found["unknown"] / (seed + 1))
            print(
                f"{seed + 1} gangs: {dict(sorted(found.items()))}, {rate:.1f} % decided, at most {longest:.1f} s",
                flush=True,
            )


def times(_: int = 0) -> None:
    """The CPU time of both answers for large gangs, best of three. All runs in one thread."""
    compile_selector("true")  # reads the parser's grammar, once a process
    nodes = [node(f"n{index:04}") for index in range(NODES)]
    whole = cluster(nodes, *(gpus(each.name, 8) for each in nodes))
    few = cluster(nodes, *(gpus(each.name, 8) for each in nodes[: NODES // 10]))
    divided = cluster(nodes, *(slice_ for each in nodes for slice_ in halves(each.name, 8)))
    tight = cluster(nodes, *(slice_ for each in nodes[:16] for slice_ in halves(each.name, 8)))
    cases: dict[str, tuple[Snapshot, Callable[[int], Gang]]] = {
        "8 GPUs each": (whole, lambda pods: _gang(pods, (8,))),
        "1 GPU each": (whole, lambda pods: _gang(pods, (1,))),
        "1, 3, 5 and 7 GPUs": (whole, lambda pods: _gang(pods, (1, 3, 5, 7))),
        "1, 3, 5 and 7 GPUs on 100 nodes": (few, lambda pods: _gang(pods, (1, 3, 5, 7))),
        "a GPU or a half": (divided, _halves),
        "a GPU or a half on 16 nodes": (tight, _halves),
    }
    print(f"{PODS} pods on {NODES} nodes         {'scheduler':>12} {'joint search':>20}   ms of CPU time")
    for name, (snapshot, make) in cases.items():
        verdict_ms, verdict = _timed(partial(schedule, make(PODS)), snapshot)
        answer_ms, answer = _timed(partial(assign, make(PODS)), snapshot)
        print(f"{name:32} {verdict.status:>14} {verdict_ms:6.0f} {_kind(answer):>12} {answer_ms:6.0f}", flush=True)


def _gang(pods: int, counts: tuple[int, ...]) -> Gang:
    return gang(*(member(f"p{index}", wanting(f"c{index}", counts[index % len(counts)])) for index in range(pods)))


def _halves(pods: int) -> Gang:
    return gang(*(member(f"p{index}", whole_or_half(f"c{index}")) for index in range(pods)))


def _kind(answer: JointAnswer) -> str:
    return "assignment" if answer.placements else "none" if answer.proof else "unknown"


def _timed(ask: Callable[[Snapshot, Features], T], snapshot: Snapshot) -> tuple[float, T]:
    """Asks about a cluster of which nothing has been prepared."""
    best, answers = float("inf"), []
    for _ in range(3):
        there = snapshot.cluster
        new = replace(snapshot, cluster=Cluster(there.slices, there.classes, there.nodes, there.claims))
        start = time.process_time()
        answers.append(ask(new, FEATURES))
        best = min(best, time.process_time() - start)
    return best * 1000, answers[0]


def main(arguments: list[str]) -> None:
    chosen = [brute, decided, times]
    if arguments:
        chosen = [each for each in chosen if each.__name__ == arguments[0]]
    for each in chosen or [sys.exit(f"no measurement {arguments[0]!r} (there are brute, decided, times)")]:
        each(*map(int, arguments[1:2]))


if __name__ == "__main__":
    main(sys.argv[1:])
