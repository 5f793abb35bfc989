# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.dryrun`: the dry run on large clusters, loading apart from deciding.

The clusters of tests/golden/bench, read as a user's YAML snapshot and as one JSON document, then asked once: deciding
for all nodes, and explaining when nothing fits. Then how deciding grows with the number of like nodes, how long
it takes to place many pods one after the other, and last verdicts on whole pods.
"""

import gc
import gzip
import itertools
import json
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dra_driver.dryrun.documents import Document, read_documents
from dra_driver.dryrun.evaluate import evaluate
from dra_driver.dryrun.inventory import CLASSES, from_documents
from dra_driver.dryrun.workload import Demand, sort_documents
from dra_driver.dryrun.world import World
from dra_driver.kube.resource import DeviceClass, Node, ResourceClaim, ResourceSlice
from dra_driver.kube.resource.codec import Decoded, decode
from dra_driver.scheduler.allocator import Cluster, Features, allocate_all
from dra_driver.scheduler.cel import compile_selector
from dra_driver.scheduler.pods import Reader
from tests.bench.allocation import prepare_cluster
from tests.dryrun.clusters import with_defaults
from tests.dryrun.conftest import gpu, slice_of
from tests.dryrun.test_whole_pod import claim, node, pod, policy, running

FOLDER = Path(__file__).parents[1] / "golden" / "bench"
CASES = (("a", ""), ("a", "seven"), ("b", ""), ("b", "first-busy"))
GO_MILLISECONDS = {"a": 172.0, "a seven": 36.0, "b": 10_000.0, "b first-busy": 17_200.0}


def main() -> None:
    compile_selector("true")  # reads the parser's grammar, once a process
    print(f"{'':14} {'load JSON':>10} {'decide':>8} {'Go':>8}  {'ratio':>6} {'verdict':>9}   ms; Go decides only")
    for name, state in CASES:
        _run(name, state)
    _scale()
    _placing()
    _whole_pods()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, which has held every cluster in turn: {peak:.0f} MiB")


def _run(name: str, state: str) -> None:
    documents = _read(f"{name}-cluster.yaml.gz")
    if state:
        documents += _read(f"{name}-allocated-{state}.yaml.gz")
    claim = decode(_read(f"{name}-claim.yaml")[0])
    assert isinstance(claim, ResourceClaim)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}), encoding="utf-8")
        loaded, load = _timed(lambda: with_defaults(from_documents(read_documents([str(path)]), path.name).objects))
    del documents
    gc.collect()
    cluster = Cluster.of(loaded)
    prepare_cluster(cluster)
    _, decide = _timed(lambda: allocate_all(cluster, [claim]))
    _, verdict = _timed(lambda: evaluate([Demand("the claim", (claim,))], loaded, Features()))
    case = f"{name} {state}".strip()
    go = GO_MILLISECONDS[case]
    print(f"{case:14} {load:10.0f} {decide:8.1f} {go:8g} {go / decide:6.0f}x {verdict:9.0f}", flush=True)


def _scale() -> None:
    objects = [decode(document) for document in _read("a-cluster.yaml.gz")]
    claim = decode(_read("a-claim.yaml")[0])
    assert isinstance(claim, ResourceClaim)
    nodes = [one for one in objects if isinstance(one, Node)]
    base = 0.0
    for count in (10, 100, 1000):
        names = {node.name for node in itertools.islice(nodes, count)}
        cluster = Cluster.of(one for one in objects if _belongs(one, names))
        _, prepare = _timed(lambda cluster=cluster: prepare_cluster(cluster))  # type: ignore[misc]
        _, decide = _timed(lambda cluster=cluster: allocate_all(cluster, [claim]))  # type: ignore[misc]
        base = base or decide
        print(f"{count:5} nodes: prepared once {prepare:6.1f} ms, decided {decide:5.2f} ms, {decide / base:.1f} x")


def _placing() -> None:
    """1,000 pods of a Deployment one after the other on 1,000 nodes of 8 GPUs, idle or with 50,000 running pods."""
    spec = pod("p", "1", resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "one"}])["spec"]
    template = {**claim("one"), "kind": "ResourceClaimTemplate"}
    template["spec"] = {"spec": template["spec"]}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"}}
    workload["spec"] = {"replicas": 1000, "template": {"spec": spec}}
    demands = sort_documents([Document(one, "bench") for one in (template, workload)]).demands
    for pods in (0, 50_000):
        objects, world = _cluster(1000, pods, lambda _: 50)
        for what, around in (("whole pods", world), ("devices only", None)):
            placed, taken = _timed(lambda o=objects, w=around: evaluate(demands, o, Features(), w))  # type: ignore[misc]
            assert all(one.fits for one in placed)
            print(f"1000 pods on 1000 nodes with {pods} running pods, {what}: {taken / 1000:.2f} s", flush=True)


def _cluster(count: int, pods: int, cpu: Callable[[int], int]) -> tuple[list[Decoded], World]:
    """`count` nodes of 8 GPUs with running pods; `cpu` gives what each of these requests, in thousandths."""
    names = [f"node-{number}" for number in range(count)]
    reader = Reader()
    objects: list[Decoded] = [*CLASSES]
    for name in names:
        reader.add(made := node(name, labels={"zone": name[-1]}))
        objects += [decode(made), decode(slice_of(name, *(gpu(f"gpu-{index}") for index in range(8))))]
    for number in range(pods):
        reader.add(running(f"pod-{number}", names[number % count], f"{cpu(number)}m", priority=0))
    reader.add(policy("scheduling.k8s.io/v1", "PriorityClass", "high", "", value=1000))
    return objects, World(reader.snapshot(), reader.policies())


def _whole_pods() -> None:
    """Verdicts on whole pods: 5,000 nodes of 8 GPUs with 50,000 running pods."""
    objects, world = _cluster(5000, 50_000, lambda number: number * 37 % 1100 + 100)
    asked: dict[str, list[dict[str, Any]]] = {
        "fits": [claim(), pod("one", "1", "wanted")],
        "lacks cpu": [claim(), pod("one", "9", "wanted")],
        "lacks devices": [claim(count=9), pod("one", "1", "wanted")],
        "preempts": [claim(), pod("one", "7900m", "wanted", priorityClassName="high")],
    }
    for what, documents in asked.items():
        demands = sort_documents([Document(one, "bench") for one in documents]).demands
        _, taken = _timed(lambda demands=demands: evaluate(demands, objects, Features(), world))  # type: ignore[misc]
        print(f"5000 nodes, 50000 pods, one that {what}: {taken:.0f} ms", flush=True)


def _belongs(one: object, names: set[str]) -> bool:
    if isinstance(one, Node):
        return one.name in names
    return one.node_name in names if isinstance(one, ResourceSlice) else isinstance(one, DeviceClass)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = work()
    return result, (time.perf_counter() - began) * 1000


def _read(name: str) -> list[Any]:
    path = FOLDER / name
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    documents: Sequence[Any] = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    return [document for document in documents if document is not None]


if __name__ == "__main__":
    main()
