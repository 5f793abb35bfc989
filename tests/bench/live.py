# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.live [--nodes 5000] [--pods 50000]`: `dra-dryrun pod.yaml` against a large live cluster.

The API server is a small one that answers lists in pages, as kube-apiserver does, with nodes and pods as large as real
ones (managed fields, environments, statuses). It runs in another process. Printed are the seconds and the peak memory
of the command, and how many bytes it has read.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dra_driver.dryrun.inventory import CLASSES
from dra_driver.dryrun.snapshot import encoded
from tests.dryrun.conftest import gpu, slice_of
from tests.dryrun.test_whole_pod import claim, node, pod, running, several
from tests.support.paging import GROUP, Collection, PagedServer, paged

JSON = dict[str, Any]

_ENVIRONMENT = [{"name": f"VARIABLE_{number}", "value": f"value-{number}" * 3} for number in range(12)]
_FIELDS: JSON = {f"f:field-{number}": {f"f:sub-{other}": {} for other in range(8)} for number in range(16)}
_CONDITIONS = [
    {"type": kind, "status": "True", "lastTransitionTime": "2026-11-22T10:00:00Z", "lastProbeTime": None}
    for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    given = parser.parse_args()
    mine, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(theirs, given.nodes, given.pods))
    server.start()
    try:
        served: PagedServer = mine.recv()
        with tempfile.TemporaryDirectory() as folder:
            wanted = Path(folder) / "pod.json"
            wanted.write_text(json.dumps(several([claim(), pod("p", "1", "wanted")])))
            config = served.write_kubeconfig(Path(folder) / "kubeconfig")
            for flags in (["--devices-only"], []):
                _ask(["--kubeconfig", str(config), "--request-timeout", "60s", str(wanted), *flags])
        mine.send("end")
        print(f"{mine.recv() / 1e6:.0f} MB of JSON in all")
    finally:
        server.terminate()


def _ask(arguments: list[str]) -> None:
    began = time.perf_counter()
    asking = subprocess.Popen([sys.executable, "-m", "dra_driver.dryrun.main", *arguments], stdout=subprocess.PIPE)
    assert asking.stdout is not None
    said = asking.stdout.read().decode().splitlines()
    _, status, used = os.wait4(asking.pid, 0)
    taken = time.perf_counter() - began
    processor = used.ru_utime + used.ru_stime
    print(said[1] if status == 0 else said)
    print(
        f"  {taken:.1f} s, of which {processor:.1f} s of its own CPU time; peak memory {used.ru_maxrss / 1024:.0f} MiB"
    )


def _serve(pipe: Connection, nodes: int, pods: int) -> None:
    """Sends where the server is, answers until the other side sends something, and sends how many bytes it sent."""
    collections = {
        "/api/v1/nodes": Collection(nodes, _node),
        "/api/v1/pods": Collection(pods, lambda number: _pod(number, nodes)),
        f"{GROUP}/v1/resourceslices": Collection(nodes, _slice),
        f"{GROUP}/v1/deviceclasses": Collection(len(CLASSES), list(encoded(CLASSES)).__getitem__),
    }
    with paged(collections) as server:
        pipe.send(server)
        pipe.recv()
        pipe.send(server.sent)


def _node(number: int) -> JSON:
    made = node(f"node-{number}", labels={f"example.com/label-{one}": "value" for one in range(30)})
    made["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": _FIELDS}]
    made["status"]["images"] = [{"names": [f"registry.example.com/image-{one}@sha256:{'0' * 64}"]} for one in range(50)]
    return made


def _slice(number: int) -> JSON:
    return slice_of(f"node-{number}", *(gpu(f"gpu-{index}") for index in range(8)))


def _pod(number: int, nodes: int) -> JSON:
    made = running(f"pod-{number}", f"node-{number % nodes}", f"{number * 37 % 1100 + 100}m", priority=0)
    made["metadata"]["labels"] = {"app": f"app-{number % 500}", "pod-template-hash": f"{number:08x}"}
    made["metadata"]["managedFields"] = [{"manager": "kube-controller-manager", "fieldsV1": _FIELDS}]
    container = made["spec"]["containers"][0]
    container["env"] = _ENVIRONMENT
    container["volumeMounts"] = [{"name": f"volume-{one}", "mountPath": f"/mnt/{one}"} for one in range(4)]
    made["spec"]["volumes"] = [{"name": f"volume-{one}", "configMap": {"name": f"map-{one}"}} for one in range(4)]
    statuses = [{"name": "c", "ready": True, "image": "i", "imageID": "0" * 64, "containerID": "0" * 64}]
    made["status"] |= {"conditions": _CONDITIONS, "containerStatuses": statuses, "podIP": "10.0.0.1"}
    return made


if __name__ == "__main__":
    main()
