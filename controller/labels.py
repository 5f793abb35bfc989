# SPDX-License-Identifier: Apache-2.0
"""Labels of the node, for workloads that select nodes by the labels of NVIDIA's GPU Feature Discovery (GFD).

Names and values are those of GFD 0.20 with the MIG strategy `mixed`. GFD itself sets no labels on nodes either: node
feature discovery (NFD) does, from a NodeFeature object or from a file on the node. Three things differ from GFD:

- There is no timestamp, and MIG devices that were created for claims are not counted. So labels change only if the
  node does, and not with each claim.
- If a node has GPUs of several models, the labels describe the first whole GPU. GFD selects a model at random.
- The driver of the host of a vGPU is unknown.
"""

import logging
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from dra_driver.backoff import Backoff
from dra_driver.containment import Count, contained
from dra_driver.errors import DriverError
from dra_driver.files import NotAFileError, read_file, remove_file, write_file
from dra_driver.gpu.devices.enforcement import UnenforceableError, enforcement
from dra_driver.gpu.facts import Gpu, Inventory, MigProfile
from dra_driver.gpu.imex import clique_of
from dra_driver.gpu.ownership import MigPlace
from dra_driver.gpu.policy import Enforcement, NodePolicy
from dra_driver.kubeapi import ApiClient, Kind, NotFoundError
from dra_driver.kubeapi.client import JSON

log = logging.getLogger(__name__)

Labels = Mapping[str, str]

NODE_FEATURES = Kind("nfd.k8s-sigs.io/v1alpha1", "nodefeatures", namespaced=True)
ROLES = Kind("rbac.authorization.k8s.io/v1", "roles", namespaced=True)
NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
"""NFD finds the node of a NodeFeature object by this label."""

_STOP_SECONDS = 10.0  # longer than a request to an API server that answers
_PREFIX = "nvidia.com/"
_FAMILIES = (
    ((13, 0), "rubin"),
    ((10, 0), "blackwell"),  # 10 and 12
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
)
_MODES = {"0x030200": "compute", "0x030000": "graphics"}


def node_labels(hardware: tuple[Inventory, Set[object]] | None, policy: NodePolicy, sys_root: Path) -> Labels | None:
    """The labels of a node: empty if it has no GPU, None if its GPUs cannot be read. `hardware` is that of a NodeView.
    The machine's product name and the PCI classes are read below `sys_root`.
    """
    if hardware is None:
        return None
    inventory, owned = hardware
    gpus = inventory.gpus
    if not gpus:
        return None if inventory.failures else {}
    one = next((gpu for gpu in gpus if not gpu.in_mig_mode), gpus[0])
    replicas, strategy = (0, "none") if one.in_mig_mode else _sharing(one, False, policy)
    modes = {_text(sys_root / f"bus/pci/devices/{gpu.pci_address}/class") for gpu in gpus}
    capability = one.compute_capability
    values: dict[str, object | None] = {
        **_versions(inventory),
        "gpu.machine": _word(_text(sys_root / "class/dmi/id/product_name") or "unknown"),
        "gpu.mode": _MODES.get(str(modes.pop()), "unknown") if len(modes) == 1 else "unknown",
        "gpu.product": _product(replicas, one.product_name or ""),
        "gpu.count": sum(gpu.product_name == one.product_name for gpu in gpus),
        "gpu.replicas": replicas,
        "gpu.sharing-strategy": strategy,
        "gpu.memory": None if one.memory is None else one.memory >> 20,
        "gpu.clique": _clique(gpus),
        "mig.capable": _yes(any(gpu.mig_mode is not None for gpu in gpus)),
        "mig.strategy": "mixed",
        "mps.capable": _yes(strategy == "mps"),
        "vgpu.present": _yes(any(gpu.is_vgpu for gpu in gpus)),
        **_mig(gpus, owned, policy),
    }
    if capability is not None:
        family = next((name for since, name in _FAMILIES if since <= capability), "undefined")
        values |= {"gpu.family": family, "gpu.compute.major": capability[0], "gpu.compute.minor": capability[1]}
    return {f"{_PREFIX}{name}": str(value) for name, value in sorted(values.items()) if value is not None}


def _versions(inventory: Inventory) -> dict[str, object | None]:
    full = inventory.driver_version
    major, minor, revision = [*full.split("."), "", ""][:3]
    found: dict[str, object | None] = {
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": full,
    }
    if inventory.cuda_driver_version is not None:
        major, minor = (str(part) for part in divmod(inventory.cuda_driver_version // 10, 100))
        for name in ("cuda.runtime", "cuda.runtime-version"):
            found |= {f"{name}.major": major, f"{name}.minor": minor}
        found["cuda.runtime-version.full"] = f"{major}.{minor}"
    return found


def _mig(gpus: Sequence[Gpu], owned: Set[object], policy: NodePolicy) -> dict[str, object]:
    """The labels of each profile of which an administrator created MIG devices."""
    found: dict[str, list[tuple[Gpu, MigProfile]]] = defaultdict(list)
    for gpu in gpus:
        profiles = {profile.info.id: profile for profile in gpu.mig_profiles}
        for one in gpu.mig_instances:
            profile = profiles.get(one.profile_id)
            if profile and one.filled and MigPlace(gpu.uuid, one.profile_id, one.placement) not in owned:
                found[profile.name.replace("+", ".")].append((gpu, profile))
    labels: dict[str, object] = {}
    for name, devices in found.items():
        gpu, profile = devices[0]
        info = profile.info
        replicas, strategy = _sharing(gpu, True, policy)
        values = {
            "product": _product(replicas, gpu.product_name or "", "MIG", name),
            "count": len(devices),
            "replicas": replicas,
            "sharing-strategy": strategy,
            "memory": info.memory_mib,
            "multiprocessors": info.multiprocessors,
            "slices.gi": info.slice_count,
            "slices.ci": info.slice_count,
            "engines.copy": info.copy_engines,
            "engines.decoder": info.decoders,
            "engines.encoder": info.encoders,
            "engines.jpeg": info.jpeg_engines,
            "engines.ofa": info.ofa_engines,
        }
        labels |= {f"mig-{name}.{key}": value for key, value in values.items()}
    return labels


def _sharing(gpu: Gpu, is_mig: bool, policy: NodePolicy) -> tuple[int, str]:
    """The number of replicas and GFD's name of the sharing strategy. Shares without a number have no replicas."""
    shares = policy.for_gpu(gpu).shares
    if not isinstance(shares, int) or shares < 2:
        return 1, "none"
    try:
        return shares, "mps" if enforcement(gpu, is_mig, policy) is Enforcement.MPS else "time-slicing"
    except UnenforceableError:
        return 1, "none"


def _product(replicas: int, *words: str) -> str:
    return "-".join([*map(_word, words), *(["SHARED"] if replicas > 1 else [])])


def _clique(gpus: Sequence[Gpu]) -> str | None:
    cliques = {clique_of(gpu.fabric) for gpu in gpus} - {None}
    return cliques.pop() if len(cliques) == 1 else None


def _word(text: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9-_. ]", "", text).split())


def _yes(value: bool) -> str:
    return str(value).lower()


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


class NodeFeature:
    """Writes a NodeFeature object.

    Its owner is the Role that permits this. When the feature is disabled or the chart is uninstalled, Helm deletes the
    Role, and Kubernetes deletes the objects. NFD deletes the objects of nodes that no longer exist. When this process
    ends, the object stays for the next one.
    """

    def __init__(self, client: ApiClient, node: str, role: str) -> None:
        """`role` is NAMESPACE/NAME. The object is in that namespace."""
        self._client = client
        self._node = node
        self._namespace, _, self._role = role.partition("/")
        self._name = f"{_PREFIX.rstrip('/')}-{node}"

    def write(self, labels: Labels) -> None:
        """Patch the object, or create it. A patch without a difference changes nothing in the API server."""
        role = self._client.get(ROLES, self._role, self._namespace)["metadata"]
        owner = {"apiVersion": ROLES.api_version, "kind": "Role", "name": role["name"], "uid": role["uid"]}
        value: JSON = {
            "metadata": {"name": self._name, "labels": {NODE_NAME_LABEL: self._node}, "ownerReferences": [owner]},
            "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": labels},
        }
        try:
            stored = self._patch(value)
        except NotFoundError:
            value = {"apiVersion": NODE_FEATURES.api_version, "kind": "NodeFeature", **value}
            stored = self._client.create(NODE_FEATURES, value, self._namespace)
        if stale := (stored["spec"].get("labels") or {}).keys() - labels.keys():
            self._patch({"spec": {"labels": dict.fromkeys(stale)}})

    def _patch(self, value: Mapping[str, object]) -> JSON:
        return self._client.patch(NODE_FEATURES, self._name, value, namespace=self._namespace)


class FeatureFile:
    """Writes a file for NFD's worker on this node. The process that wrote it last removes it when it ends, so it stays
    if another process has taken over in a rolling update.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer = f"# written by dra-controller {uuid.uuid4()}\n"

    def write(self, labels: Labels) -> None:
        """Write the file, if its content differs."""
        text = self._writer + "".join(f"{name}={value}\n" for name, value in labels.items())
        if self._content() != text:
            write_file(self._file, text.encode(), self._file.with_name(f".{self._file.name}"), 0o644)

    def remove(self) -> None:
        """Remove the file, if this process wrote it last."""
        try:
            if self._content().startswith(self._writer):
                remove_file(self._file)
        except OSError as error:
            log.warning("the labels of the node stay: %s", error)

    def _content(self) -> str:
        try:
            return read_file(self._file).decode(errors="replace")
        except (FileNotFoundError, NotAFileError):
            return ""


@dataclass(frozen=True, slots=True)
class LabelTiming:
    """How long the labeler waits, in seconds."""

    compare: float = 600.0  # between writes without a change, which restore what somebody else changed
    first_retry: float = 1.0
    longest_retry: float = 300.0


class Labeler:
    """Keeps the labels up to date between `start` and `stop`, on a thread of its own: the API server may be slow.

    `output` writes labels, and may raise DriverError or OSError. `labels` returns the current labels, or None while
    they are unknown. `unexpected` counts unexpected errors.
    """

    def __init__(
        self,
        output: Callable[[Labels], None],
        labels: Callable[[], Labels | None],
        unexpected: Count,
        timing: LabelTiming | None = None,
    ) -> None:
        self._output = output
        self._labels = labels
        self._unexpected = unexpected
        self._timing = timing or LabelTiming()
        self._backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        self._changed = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="labels", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """The labels may have changed."""
        self._changed.set()

    def stop(self) -> None:
        """Stop the thread, and wait for its current write."""
        self._stopped = True
        self._changed.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        """Write when the labels change, and when a write is due."""
        wanted: Labels | None = None
        due = 0.0
        while True:
            self._changed.clear()
            if self._stopped:  # asked only now: `stop` sets it before it wakes the thread
                return
            labels = None
            with contained("make labels", "of the node", self._unexpected):
                labels = self._labels()
            if labels is not None and (labels != wanted or time.monotonic() >= due):
                wanted, due = labels, self._write(labels) + time.monotonic()
            self._changed.wait(None if labels is None else max(0.0, due - time.monotonic()))

    def _write(self, labels: Labels) -> float:
        """Write, and return the seconds until the next write."""
        pause = self._backoff.pause()
        with contained("write labels", "of the node", self._unexpected):
            try:
                self._output(labels)
            except (DriverError, OSError) as error:
                log.warning(
                    "the labels of the node are not written: %s", error, extra={"retry_seconds": round(pause, 1)}
                )
            else:
                self._backoff.reset()
                pause = self._timing.compare
        return pause
