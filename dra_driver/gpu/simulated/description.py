# SPDX-License-Identifier: Apache-2.0
"""The description of a simulated node: a short YAML file, strictly read.

driverVersion: 570.158.01
cudaVersion: "12.8"
gpus:
- model: H100-SXM5-80GB     # a board of boards.yaml
  count: 2
  mig: true                 # MIG mode is enabled
  instances:                # exist in each of these GPUs from the start
  - {profile: 3g.40gb, start: 4}
  numaNodes: [0, 1]
  pciAddresses: ["0000:1b:00.0", "0000:43:00.0"]
  pcieRoots: ["pci0000:15", "pci0000:3d"]
  minors: [1, 0]            # of /dev/nvidiaN; NVML's indexes follow the PCI addresses
  vgpu: true                # these are vGPUs, and the node is a virtual machine
  vgpuHost:                 # NVIDIA's vGPU manager runs on the node
    framework: vfio         # vfio, or mdev
    functions: 16           # virtual functions of each GPU; 0 for a board without SR-IOV
    mixed: true             # vGPUs of several types can be on a GPU (heterogeneous mode)
fabric:                     # the NVLink fabric of all nodes with this description
  clusterUUID: 5a1f…        # zeros for one that does not leave the node
  clique: 1
  nodesPerClique: 9         # node-1 to node-9 are in clique 1, node-10 to node-18 in clique 2, …; default: all in one
imexChannels: 2048          # default: 2048 with a fabric, 0 without
partitions: [[1, 2], [1], [2]]  # of its NVSwitches, by module IDs (1 is the first GPU): Fabric Manager shares them
faults:                     # see dra_driver.gpu.simulated.faults
- {call: nvmlDeviceCreateGpuInstanceWithPlacement, gpu: 0, code: INSUFFICIENT_RESOURCES, times: 1}
"""

import functools
import re
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from ...errors import DescriptionError, ParseError
from ...kube.resource.codec import DecodeError, Fields
from ...process.parsing import decode_text, load
from ..nvml import NvmlError, Placement
from ..vgpus import VgpuFramework
from .board import COMPUTE_PROFILES, Board, BoardModel, ProfileModel, boards
from .faults import Fault, decode_fault, encode_fault
from .state import BoardState

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0")
_MOST_GPUS = 240  # buses from 0000:10 on
_MOST_FUNCTIONS = 32
_LAST_MINOR = 253  # nvidia-modeset and nvidiactl have the next ones
_DEFAULT_CHANNELS, _MOST_CHANNELS = 2048, 1 << 20
_NUMBER = re.compile(r"[0-9]+$")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+")


@dataclass(frozen=True, slots=True)
class InstanceDescription:
    """A MIG instance that exists from the start: a GPU instance with one compute instance of the same size."""

    profile: str
    start: int

    def on(self, board: BoardModel) -> tuple[ProfileModel, Placement]:
        """The profile and placement of the instance on a board that has them."""
        profile = next(profile for profile in board.profiles if profile.info.name == self.profile)
        return profile, next(placement for placement in profile.placements if placement.start == self.start)


@dataclass(frozen=True, slots=True)
class VgpuHostDescription:
    """A GPU with NVIDIA's vGPU manager."""

    framework: VgpuFramework
    functions: int
    mixed: bool


@dataclass(frozen=True, slots=True)
class GpuDescription:
    """One simulated GPU. `minor` is N of /dev/nvidiaN."""

    board: BoardModel
    pci_address: str
    numa_node: int
    pcie_root: str
    minor: int
    mig: bool = False
    instances: tuple[InstanceDescription, ...] = ()
    vgpu: bool = False
    vgpu_host: VgpuHostDescription | None = None

    @property
    def virtual_functions(self) -> int:
        """The number of its virtual functions of SR-IOV."""
        return 0 if self.vgpu_host is None else self.vgpu_host.functions


@dataclass(frozen=True, slots=True)
class FabricDescription:
    """The NVLink fabric that all GPUs of the node belong to. `nodes_per_clique` is 0 if all nodes are in one clique."""

    cluster_uuid: str
    clique: int
    nodes_per_clique: int = 0

    def of_node(self, name: str) -> "FabricDescription":
        """The fabric of the node with this name. Its clique follows from the number at the end of the name, counted
        from 1.
        """
        number = _NUMBER.search(name)
        if not self.nodes_per_clique or number is None:
            return self
        return FabricDescription(self.cluster_uuid, self.clique + max(int(number[0]) - 1, 0) // self.nodes_per_clique)


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A simulated node. Its GPUs are in the order of their PCI addresses, like NVML's."""

    driver_version: str
    cuda_version: str
    gpus: tuple[GpuDescription, ...]
    fabric: FabricDescription | None = None
    faults: tuple[Fault, ...] = ()
    partitions: tuple[tuple[int, ...], ...] = ()
    imex_channels: int = 0


def shipped_nodes() -> list[str]:
    """The names of the built-in example nodes. `-mig`, `-mixed` or `-vgpu` may be added to each."""
    folder = resources.files(__package__).joinpath("nodes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir())


def load_description(name_or_path: str) -> NodeDescription:
    """The built-in example node with this name, or the node that this YAML file describes.

    `NAME-mig` is the example node with MIG mode enabled on all GPUs, and `NAME-mixed` with MIG mode enabled on the
    second half of its GPUs. On GPUs without MIG it stays disabled. `NAME-vgpu` has NVIDIA's vGPU manager, with 32
    virtual functions of each GPU, in heterogeneous mode. Raises DescriptionError.
    """
    shipped = shipped_nodes()
    base, _, mode = name_or_path.rpartition("-")
    if name_or_path in shipped:
        base, mode = name_or_path, ""
    if base in shipped and mode in ("", "mig", "mixed", "vgpu"):
        return _built_in(base, mode)
    path = Path(name_or_path)
    if not path.is_file():
        raise DescriptionError(
            f"no simulated node {name_or_path!r}: there is no such file, and the built-in example nodes are"
            f" {', '.join(shipped)}, each also with -mig, -mixed or -vgpu at its end"
        )
    try:
        text = decode_text(path.read_bytes())
    except OSError as error:
        raise DescriptionError(f"simulated node {name_or_path} cannot be read: {error.strerror}") from None
    except ParseError as error:
        raise DescriptionError(f"simulated node {name_or_path}:{error}") from None
    return parse_description(text, name_or_path)


@functools.cache
def _built_in(base: str, mode: str) -> NodeDescription:
    """A built-in example node, of which there are some dozens."""
    text = resources.files(__package__).joinpath("nodes", f"{base}.yaml").read_text(encoding="utf-8")
    node = parse_description(text, base)
    if mode == "vgpu":
        host = VgpuHostDescription(VgpuFramework.VFIO, _MOST_FUNCTIONS, mixed=True)
        return replace(node, gpus=tuple(replace(gpu, vgpu_host=host) for gpu in node.gpus))
    first = {"": len(node.gpus), "mig": 0, "mixed": len(node.gpus) // 2}[mode]
    gpus = (
        replace(gpu, mig=gpu.mig or (index >= first and bool(gpu.board.profiles)))
        for index, gpu in enumerate(node.gpus)
    )
    return replace(node, gpus=tuple(gpus))


def parse_description(text: str, source: str) -> NodeDescription:
    """The node that a YAML text describes. `source` names the text in errors. Raises DescriptionError."""
    try:
        value = load(text)
        return decode_description({} if value is None else value)
    except ParseError as error:
        raise DescriptionError(f"simulated node {source}:{error}") from None
    except DecodeError as error:
        raise DescriptionError(f"simulated node {source}: {error}") from None


def decode_description(value: object) -> NodeDescription:
    """The node of a parsed YAML text. Raises DecodeError."""
    return _node(Fields(value))


def encode_description(node: NodeDescription) -> dict[str, Any]:
    """The form that `decode_description` reads."""
    encoded: dict[str, Any] = {
        "driverVersion": node.driver_version,
        "cudaVersion": node.cuda_version,
        "gpus": [
            {
                "model": gpu.board.model,
                "mig": gpu.mig,
                "instances": [{"profile": instance.profile, "start": instance.start} for instance in gpu.instances],
                "numaNodes": [gpu.numa_node],
                "pciAddresses": [gpu.pci_address],
                "pcieRoots": [gpu.pcie_root],
                "minors": [gpu.minor],
                "vgpu": gpu.vgpu,
                **({} if gpu.vgpu_host is None else {"vgpuHost": asdict(gpu.vgpu_host)}),
            }
            for gpu in node.gpus
        ],
        "faults": [encode_fault(fault) for fault in node.faults],
    }
    if node.partitions:
        encoded["partitions"] = [list(partition) for partition in node.partitions]
    if node.fabric is not None:
        fabric = node.fabric
        encoded["fabric"] = {"clusterUUID": fabric.cluster_uuid, "clique": fabric.clique}
        if fabric.nodes_per_clique:
            encoded["fabric"]["nodesPerClique"] = fabric.nodes_per_clique
    if node.imex_channels != _default_channels(node.fabric):
        encoded["imexChannels"] = node.imex_channels
    return encoded


def _node(fields: Fields) -> NodeDescription:
    gpus = tuple(gpu for group in fields.objects("gpus", _gpu_group) for gpu in group)
    if len(gpus) > _MOST_GPUS:
        raise fields.error("gpus", f"a node has at most {_MOST_GPUS}, not {len(gpus)}")
    given = [gpu.pci_address for gpu in gpus if gpu.pci_address]
    for address in given:
        if given.count(address) > 1:
            raise fields.error("gpus", f"two GPUs have the PCI address {address}")
    minors = [gpu.minor for gpu in gpus if gpu.minor >= 0]
    for minor in minors:
        if minors.count(minor) > 1:
            raise fields.error("gpus", f"two GPUs have the minor {minor}")
    fabric_fields = fields.object("fabric")
    fabric = None if fabric_fields is None else _fabric(fabric_fields)
    channels = fields.integer("imexChannels")
    node = NodeDescription(
        driver_version=_version(fields, "driverVersion"),
        cuda_version=_version(fields, "cudaVersion"),
        gpus=_with_minors(_with_addresses(gpus)),
        fabric=fabric,
        faults=fields.objects("faults", decode_fault),
        partitions=tuple(map(tuple, fields.array("partitions"))),
        imex_channels=_default_channels(fabric) if channels is None else channels,
    )
    if not 0 <= node.imex_channels <= _MOST_CHANNELS:
        raise fields.error("imexChannels", f"must be from 0 to {_MOST_CHANNELS}, not {node.imex_channels}")
    if any(not partition or not set(partition) <= set(range(1, len(gpus) + 1)) for partition in node.partitions):
        raise fields.error("partitions", f"must be lists of module IDs from 1 to {len(gpus)}")
    fields.finish()
    return node


def _version(fields: Fields, name: str) -> str:
    text = fields.required_text(name)
    if not _VERSION.fullmatch(text):
        raise fields.error(name, f"{text!r} is not a dotted number such as 12.8")
    return text


def _fabric(fields: Fields) -> FabricDescription:
    per_clique = fields.integer("nodesPerClique") or 0
    if per_clique < 0:
        raise fields.error("nodesPerClique", f"must not be negative: {per_clique}")
    fabric = FabricDescription(fields.required_text("clusterUUID"), fields.integer("clique") or 0, per_clique)
    fields.finish()
    return fabric


def _default_channels(fabric: FabricDescription | None) -> int:
    return 0 if fabric is None else _DEFAULT_CHANNELS


def _gpu_group(fields: Fields) -> tuple[GpuDescription, ...]:
    model = fields.required_text("model")
    board = boards().get(model)
    if board is None:
        raise fields.error("model", f"{model!r} is not simulated (there are {', '.join(boards())})")
    count = fields.integer("count")
    count = 1 if count is None else count
    if not 1 <= count <= _MOST_GPUS:
        raise fields.error("count", f"must be from 1 to {_MOST_GPUS}, not {count}")
    mig = fields.flag("mig")
    instances = fields.objects("instances", lambda instance: _instance(instance, board))
    vgpu, host = fields.flag("vgpu"), fields.object("vgpuHost")
    vgpu_host = None if host is None else _vgpu_host(host)
    if instances and not mig:
        raise fields.error("instances", "need mig: true")
    if mig and not board.profiles:
        raise fields.error("mig", f"{model} has no MIG")
    _check_fit(fields, board, instances)
    numa_nodes = _per_gpu(fields, "numaNodes", count, int)
    addresses = _per_gpu(fields, "pciAddresses", count, str)
    roots = _per_gpu(fields, "pcieRoots", count, str)
    minors = _per_gpu(fields, "minors", count, int)
    if any(not 0 <= minor <= _LAST_MINOR for minor in minors):
        raise fields.error("minors", f"must be from 0 to {_LAST_MINOR}")
    for address in addresses:
        if not _PCI_ADDRESS.fullmatch(address):
            raise fields.error("pciAddresses", f"{address!r} is not of the form 0000:3b:00.0")
    fields.finish()
    return tuple(
        GpuDescription(
            board=board,
            pci_address=addresses[i] if addresses else "",
            numa_node=numa_nodes[i] if numa_nodes else -1,
            pcie_root=roots[i] if roots else "",
            minor=minors[i] if minors else -1,
            mig=mig,
            instances=instances,
            vgpu=vgpu,
            vgpu_host=vgpu_host,
        )
        for i in range(count)
    )


def _vgpu_host(fields: Fields) -> VgpuHostDescription:
    framework, functions = fields.required_text("framework"), fields.integer("functions") or 0
    if framework not in tuple(VgpuFramework):
        raise fields.error("framework", f"must be {' or '.join(VgpuFramework)}, not {framework!r}")
    if not (framework == VgpuFramework.VFIO) <= functions <= _MOST_FUNCTIONS:
        raise fields.error("functions", f"must be from 1 to {_MOST_FUNCTIONS}, or 0 with mdev, not {functions}")
    host = VgpuHostDescription(VgpuFramework(framework), functions, fields.flag("mixed"))
    fields.finish()
    return host


def _per_gpu(fields: Fields, name: str, count: int, kind: type) -> list[Any]:
    values = fields.array(name)
    if any(type(value) is not kind for value in values):
        raise fields.error(name, f"must be a list of {kind.__name__}")
    if values and len(values) != count:
        raise fields.error(name, f"must have one entry for each GPU ({count}), has {len(values)}")
    return values


def _instance(fields: Fields, board: BoardModel) -> InstanceDescription:
    name = fields.required_text("profile")
    profile = board.profile_by_name(name)
    if profile is None:
        known = ", ".join(profile.info.name for profile in board.profiles)
        raise fields.error("profile", f"{board.model} has no profile {name!r} (it has {known})")
    start = fields.integer("start") or 0
    starts = [placement.start for placement in profile.placements]
    if start not in starts:
        raise fields.error("start", f"{name} cannot start at memory slice {start} (possible starts: {starts})")
    fields.finish()
    return InstanceDescription(name, start)


def _check_fit(fields: Fields, board: BoardModel, instances: tuple[InstanceDescription, ...]) -> None:
    """Refuse instances that the board cannot have together."""
    trial = Board(board, BoardState(mig_current=True))
    for index, instance in enumerate(instances):
        profile, placement = instance.on(board)
        try:
            trial.create_gpu_instance(profile.info.id, placement)
        except NvmlError as error:
            raise fields.error(f"instances[{index}]", f"does not fit beside the others: {error.detail}") from None


def first_state(gpu: GpuDescription) -> BoardState:
    """The state of a GPU before anything has changed it: its MIG mode, and the instances that exist from the start."""
    board = Board(gpu.board, BoardState(mig_current=gpu.mig, mig_pending=gpu.mig))
    for wanted in gpu.instances:
        profile, placement = wanted.on(gpu.board)
        instance = board.create_gpu_instance(profile.info.id, placement)
        board.create_compute_instance(instance.id, COMPUTE_PROFILES[profile.info.slice_count])
    return board.state


def _with_addresses(gpus: tuple[GpuDescription, ...]) -> list[GpuDescription]:
    """The GPUs in the order of their PCI addresses. GPUs without an address get the next free bus, from 0000:10 on."""
    taken = {gpu.pci_address for gpu in gpus}
    free = (address for bus in range(0x10, 0x100) if (address := f"0000:{bus:02x}:00.0") not in taken)
    placed = []
    for gpu in gpus:
        address = gpu.pci_address or next(free)
        domain, bus, _ = address.split(":")
        placed.append(replace(gpu, pci_address=address, pcie_root=gpu.pcie_root or f"pci{domain}:{bus}"))
    return sorted(placed, key=lambda gpu: int(re.sub("[:.]", "", gpu.pci_address), 16))


def _with_minors(gpus: list[GpuDescription]) -> tuple[GpuDescription, ...]:
    """The GPUs. Those without a minor number get the lowest free one."""
    taken = {gpu.minor for gpu in gpus}
    free = (minor for minor in range(_LAST_MINOR + 1) if minor not in taken)
    return tuple(replace(gpu, minor=next(free)) if gpu.minor < 0 else gpu for gpu in gpus)
