# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.repack [--clusters 100] [--nodes 40] [--pods 28]`: how far plans for large clusters are from
the lower bound, and how long they take.

Each cluster has nodes with 8 H100 in MIG mode, with pods of random profiles at random places. A tenth of the pods must
stay. The demand is one or two 7g.80gb, which are rarely free.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass

from dra_driver.scheduler.repack import GuardKind, Movability, PlanSearchResult, Space, find_plan
from tests.scheduler.repack.bruteforce import FEATURES, Example, Running, Tried, hopper_nodes, unit_for

PROFILES = ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb")
POOL = "new-h100x8-mig-{}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer for one cluster, and the seconds of CPU that it took."""

    pods: int
    result: PlanSearchResult
    seconds: float


def cluster(seed: int, nodes: int, most: int) -> Example:
    """A cluster of a seed, with up to `most` pods on each node, and at least two thirds of them."""
    rng = random.Random(seed)
    space = Tried(Example(hopper_nodes(1), (), ()))
    pods: list[Running] = []
    for number in range(1, nodes + 1):
        used: list[tuple[str, str]] = []
        for tried in range(rng.randint(most * 2 // 3, most)):
            place = space.random_place(rng, rng.choice(PROFILES), used)
            if place is not None:
                used.append(place)
                device = (POOL.format(number), place[1])
                pods.append(Running(f"n{number}-p{tried}", space.profile(place), device, stays=rng.random() < 0.1))
    return Example(hopper_nodes(nodes), tuple(pods), ("7g.80gb",) * rng.choice([1, 2]))


def measure(example: Example) -> Measured:
    """The plan for a cluster: its pods are read, and every step of the plan is proven."""
    snapshot = example.snapshot()
    staying = {running.name for running in example.pods if running.stays}
    started = time.process_time()
    space = Space(snapshot, FEATURES, lambda pod: Movability(stays="never" if pod.name in staying else ""))
    result = find_plan(space, [unit_for(profile) for profile in example.wanted], GuardKind.TAINTS)
    return Measured(len(example.pods), result, time.process_time() - started)


def main() -> None:
    """Prints the distances and the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--pods", type=int, default=28)
    options = parser.parse_args()
    found = [measure(cluster(seed, options.nodes, options.pods)) for seed in range(options.clusters)]
    planned = [one for one in found if one.result.plan is not None]
    moves = Counter(len(one.result.plan.steps) for one in planned if one.result.plan is not None)
    distances = Counter(one.result.distance for one in planned)
    seconds = sorted(one.seconds for one in found)
    print(f"{len(found)} clusters of {options.nodes} nodes, {found[0].pods} pods in the first")
    print(f"plans: {len(planned)}; moves: {dict(sorted(moves.items()))}")
    print(f"distance to the lower bound: {dict(sorted(distances.items()))}")
    print(f"seconds of CPU: median {statistics.median(seconds):.2f}, most {seconds[-1]:.2f}")


if __name__ == "__main__":
    main()
