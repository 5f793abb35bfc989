# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.allocation [CASE...]`: how long the allocator takes, beside Kubernetes' own.

The inputs are those of tests/golden/bench. Reading YAML and decoding is not timed. Three times are:
*prepare*, what is done once for a cluster whatever is asked of it; *first*, the first decision for all nodes
(the expressions are new to the cluster); *again*, the same decision once more. Go's times are from
tests/golden/bench/README.md: objects decoded, allocator built, first and second decision, one thread of a
2-core machine. *Go/ours* sets Go's first decision against prepare and first together, and again against again.
"""

import gc
import gzip
import itertools
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from dra_driver.kube.resource import ResourceClaim, codec
from dra_driver.scheduler.allocator import Cluster, Features, allocate_all
from dra_driver.scheduler.allocator.equivalence import ClaimReads
from dra_driver.scheduler.cel import Reads

FOLDER = Path(__file__).parents[1] / "golden" / "bench"

GO_MILLISECONDS = {
    "a idle": (172.0, 98.0),
    "a seven": (36.0, 30.0),
    "a full": (6.5, 6.1),
    "b idle": (10_000.0, 8_700.0),
    "b full": (12_100.0, 10_200.0),
    "b first-busy": (17_200.0, 16_900.0),
    "b fragmented": (23_800.0, 21_700.0),
    "b packed": (15_900.0, 12_700.0),
}


def main(cases: Sequence[str]) -> None:
    unknown = set(cases) - set(GO_MILLISECONDS)
    if unknown:
        sys.exit(f"no case {sorted(unknown)[0]!r} (there are {', '.join(GO_MILLISECONDS)})")
    print(f"{'':64}{'Go':>17}{'Go/ours':>17}")
    print(f"{'times in ms':14} {'nodes that fit':>16} {'prepare':>9} {'first':>9} {'again':>9}", end="   ")
    print(f"{'first':>8} {'again':>8} {'first':>8} {'again':>8}")
    for name in ("a", "b"):
        wanted = [case for case in GO_MILLISECONDS if case.startswith(name) and (not cases or case in cases)]
        if not wanted:
            continue
        cluster = _read(f"{name}-cluster.yaml.gz")
        claims = [item for item in _read(f"{name}-claim.yaml") if isinstance(item, ResourceClaim)]
        for case in wanted:
            state = case.partition(" ")[2]
            in_use = [] if state == "idle" else _read(f"{name}-allocated-{state}.yaml.gz")
            gc.collect()
            gc.freeze()  # what was read stays: collecting it again and again is no part of deciding
            _run(case, [*cluster, *in_use], claims)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, YAML documents included: {peak:.0f} MiB")


def prepare_cluster(cluster: Cluster) -> None:
    """Does what decisions for a cluster need once, as if an expression read all attributes."""
    equivalence = cluster.equivalence(Features())
    names: set[tuple[str, str]] = set()
    for view in equivalence._views:
        for pool in view.pools if view is not None else ():
            equivalence._basics(pool)  # pool by pool: attribute by attribute takes half as long again
            for key in pool.attribute_keys:
                equivalence._column(pool, key)
                domain, slash, identifier = key.partition("/")
                names.add((domain, identifier) if slash else (pool.driver, key))
    equivalence.groups(ClaimReads(Reads(frozenset(names)), frozenset(), capacities=False))


def _run(case: str, objects: Sequence[object], claims: Sequence[ResourceClaim]) -> None:
    features = Features()
    times = [time.perf_counter()]
    cluster = Cluster.of(objects)
    prepare_cluster(cluster)
    times.append(time.perf_counter())
    outcomes = allocate_all(cluster, claims, features)
    times.append(time.perf_counter())
    again = allocate_all(cluster, claims, features)
    times.append(time.perf_counter())
    kinds: Counter[str] = Counter()
    for group in outcomes.groups:
        kinds[group.outcome.kind] += len(group.nodes)
    assert len(again) == kinds.total()
    prepare, first, second = (1000 * (end - start) for start, end in itertools.pairwise(times))
    fit = f"{kinds['allocated']} of {kinds.total()}"
    go_first, go_second = GO_MILLISECONDS[case]
    ratios = f"{go_first / (prepare + first):7.2f}x {go_second / second:7.0f}x"
    ours = f"{prepare:9.1f} {first:9.1f} {second:9.1f}"
    print(f"{case:14} {fit:>16} {ours}   {go_first:8g} {go_second:8g} {ratios}", flush=True)


def _read(name: str) -> list[object]:
    path = FOLDER / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    documents = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [codec.decode(document) for document in documents]


if __name__ == "__main__":
    main(sys.argv[1:])
