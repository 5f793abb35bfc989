# SPDX-License-Identifier: Apache-2.0
"""Files that the pages take for granted in the reader's folder: manifests, snapshots, a chart, an overlay."""

import gzip
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver.dryrun.documents import list_of_lines
from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.gpu.devices import describe
from dra_driver.gpu.inventory import read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.policy.parse import parse_policy
from dra_driver.gpu.simulated import SimulatedNode, load_description
from dra_driver.kube.resource import ResourceSlice
from dra_driver.kube.resource.codec import V1, encode_slice
from dra_driver.process.parsing import load_all
from tests.bench.cluster import objects
from tests.dryrun.repack import world as repack_world

from .commands import PAGES, ROOT, blocks

BENCH = ROOT / "tests/golden/bench"
NODES = ("node-0000", "node-0001", "node-0002")
CLAIM = """\
# SPDX-License-Identifier: Apache-2.0
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: training
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        cuont: 2
        selectors:
        - cel:
            expression: device.attributes['gpu.nvidia.com'].productName == 'H100'
"""


def write_files(folder: Path) -> None:
    """Write all of them. A block of YAML whose first line is a comment with a file's name is that file."""
    good = CLAIM.replace("cuont", "count").replace("'H100'", "'NVIDIA A30'")
    files = {
        "manifests/claim.yaml": CLAIM,
        "claim.yaml": good,
        "kueue.yaml": (ROOT / "examples/kueue.yaml").read_text(encoding="utf-8"),
        "mig.yaml": (BENCH / "b-claim.yaml").read_text(encoding="utf-8"),
        "cluster.json": snapshot(),
        "crowded.json": crowded(),
        "fleet.json": list_of_lines(objects(200, 1000)),
        "fragmented.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": repack_world.crowded()}),
        "large.yaml": repack_world.large_pod(),
        "charts/app/Chart.yaml": "apiVersion: v2\nname: app\nversion: 0.1.0\n",
        "charts/app/templates/claim.yaml": good,
        "overlays/production/claim.yaml": good,
        "overlays/production/kustomization.yaml": "resources: [claim.yaml]\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for page in PAGES:
        for _, _, content in blocks(page.read_text(encoding="utf-8")):
            if match := re.match(r"# (\S+\.yaml)\n", content):
                (folder / match[1]).write_text(content, encoding="utf-8")
    write_slices(folder / "node.json", "l40sx4", parse_policy((folder / "policy.yaml").read_text(encoding="utf-8")))


def write_slices(path: Path, simulated: str, policy: NodePolicy) -> None:
    """What `dra-controller` publishes of a simulated node with a policy."""
    with tempfile.TemporaryDirectory() as folder:
        node = SimulatedNode.create(Path(folder), load_description(simulated), "node-1")
        nvml = node.nvml()
        nvml.initialize()
        gpus = describe(read_inventory(nvml, node.driver_root / "sys"), policy).gpus
    slices = (replace(one, pool=replace(one.pool, generation=1)) for one in node_slices("node-1", "", gpus))
    items = [encode_slice(one, V1) for one in slices]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")


def snapshot() -> str:
    """A few nodes of the large cluster that kube-scheduler decided about, with their first GPU in use."""
    texts = [
        text
        for name in ("b-cluster", "b-allocated-first-busy")
        for text in gzip.decompress((BENCH / f"{name}.yaml.gz").read_bytes()).decode().split("\n---\n")
        if not re.search(r"node-\d{4}", text) or any(node in text for node in NODES)
    ]
    return list_of_lines(load_all("\n---\n".join(texts)))


def crowded() -> str:
    """Three nodes: one whose CPUs are in use, and two whose GPUs are. A pod waits for a node with another label."""
    items: list[dict[str, Any]] = []
    for number, name in enumerate(("node-0", "node-1", "node-2")):
        room = {"cpu": "4" if number == 0 else "64", "memory": "64Gi", "pods": "110"}
        items.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": room}})
        slices = [one for one in simulated_nodes("h100x8-mig", 1) if isinstance(one, ResourceSlice)]
        moved = [replace(one, node_name=name, pool=replace(one.pool, name=name)) for one in slices]
        for index, one in enumerate(moved):
            items.append({**encode_slice(one, V1), "metadata": {"name": f"{name}-{index}"}})
        whole = [
            {"driver": one.driver, "pool": name, "device": device.name, "request": "gpu"}
            for one in moved
            for device in one.devices
            if device.attributes.get("profile") == "7g.80gb" and number
        ]
        claim: dict[str, Any] = {"apiVersion": V1.api_version, "kind": "ResourceClaim", "metadata": {"name": name}}
        if whole:
            items.append({**claim, "spec": {}, "status": {"allocation": {"devices": {"results": whole}}}})
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "500m"}}}
    busy = {"metadata": {"name": "busy"}, "spec": {"nodeName": "node-0", "containers": [container]}}
    items.append({"apiVersion": "v1", "kind": "Pod", **busy, "status": {"phase": "Running"}})
    waiting = {"metadata": {"name": "waiting"}, "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [container]}}
    items.append({"apiVersion": "v1", "kind": "Pod", **waiting, "status": {"phase": "Pending"}})
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
