# SPDX-License-Identifier: Apache-2.0
"""The facts about GPUs in labels of nodes, from GPU Feature Discovery (GFD), GKE, EKS, AKS and Karpenter.

Facts: GFD's internal/lm (device plugin 0.20); cloud.google.com/kubernetes-engine/docs/concepts/timesharing-gpus and
how-to/gpus-multi; docs.aws.amazon.com/eks/latest/userguide/create-node-pool; learn.microsoft.com/azure/aks
(use-labels, node-auto-provisioning-node-pools); karpenter.sh/docs/reference/instance-types; the lists of GPU machine
types of the three clouds (all of August 2026). GFD reads the GPUs themselves, so its labels count more than those of
the clouds.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...gpu.simulated.board import BoardModel, boards
from .configs import GPU, PREFIX, profile_of

STRATEGY: Final = "nvidia.com/mig.strategy"
GKE_ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
_GKE_PARTITION: Final = "cloud.google.com/gke-gpu-partition-size"
_GKE_CLIENTS: Final = "cloud.google.com/gke-max-shared-clients-per-gpu"
_GKE_SHARING: Final = "cloud.google.com/gke-gpu-sharing-strategy"
_GKE_ROOT: Final = "/home/kubernetes/bin/nvidia"
_AUTO_MODE: Final = ("eks.amazonaws.com/compute-type", "auto")
_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_AWS: Final = ("eks.amazonaws.com/instance-gpu", "karpenter.k8s.aws/instance-gpu")
_AZURE: Final = "karpenter.azure.com/sku-gpu"
INVALID: Final = "INVALID"
"""The profile in GFD's product if a GPU in MIG mode has no or different MIG devices, which `single` refuses."""
_PRODUCT: Final = re.compile(rf"(?P<model>.*?)(-MIG-(?P<mig>{INVALID}|[0-9]+g\..+?))?(-SHARED)?")

_T4, _L4, _A10G, _L40S = "Tesla T4", "NVIDIA L4", "NVIDIA A10G", "NVIDIA L40S"
_V100, _V100_32, _A10 = "Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", "NVIDIA A10"
_A100, _A100_80, _A100_PCIE = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"
_H100, _H100_NVL, _H200, _B200 = "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA H200", "NVIDIA B200"

_OF_GKE: Final = {
    "nvidia-tesla-p4": "Tesla P4",
    "nvidia-tesla-p100": "Tesla P100-PCIE-16GB",
    "nvidia-tesla-v100": _V100,
    "nvidia-tesla-t4": _T4,
    "nvidia-l4": _L4,
    "nvidia-tesla-a100": _A100,
    "nvidia-a100-80gb": _A100_80,
    "nvidia-h100-80gb": _H100,
    "nvidia-h100-mega-80gb": _H100,
    "nvidia-h200-141gb": _H200,
    "nvidia-b200": _B200,
    "nvidia-gb200": "NVIDIA GB200",
    "nvidia-rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
"""The product for a value of the label gke-accelerator."""
_OF_AWS: Final = {
    "v100": _V100,
    "t4": _T4,
    "t4g": "NVIDIA T4G",
    "a10g": _A10G,
    "l4": _L4,
    "l40s": _L40S,
    "a100": _A100,
    "h100": _H100,
    "h200": _H200,
    "b200": _B200,
}
"""The product for a value of the label instance-gpu-name."""
_LARGER: Final = {_V100: (20000, _V100_32), _A100: (50000, _A100_80)}
"""Products of one name on AWS: another one if the label instance-gpu-memory has more MiB than this."""
_OF_AZURE: Final = {"T4": _T4, "V100": _V100, "A10": _A10, "A100": _A100_PCIE, "H100": _H100_NVL, "H200": _H200}
"""The product for a value of the label sku-gpu-name, unless the instance type tells more."""
_INSTANCES: Final = tuple(
    (re.compile(pattern), product, count)
    for pattern, product, count in (
        (r"g4dn\.12xlarge", _T4, 4),
        (r"g4dn\.metal", _T4, 8),
        (r"g4dn\..*", _T4, 1),
        (r"g5\.(12|24)xlarge", _A10G, 4),
        (r"g5\.48xlarge", _A10G, 8),
        (r"g5\..*", _A10G, 1),
        (r"g6\.(12|24)xlarge", _L4, 4),
        (r"g6\.48xlarge", _L4, 8),
        (r"g6\..*", _L4, 1),
        (r"g6e\.(12|24)xlarge", _L40S, 4),
        (r"g6e\.48xlarge", _L40S, 8),
        (r"g6e\..*", _L40S, 1),
        (r"p3\.2xlarge", _V100, 1),
        (r"p3\.8xlarge", _V100, 4),
        (r"p3\.16xlarge", _V100, 8),
        (r"p3dn\.24xlarge", _V100_32, 8),
        (r"p4d\.24xlarge", _A100, 8),
        (r"p4de\.24xlarge", _A100_80, 8),
        (r"p5\.4xlarge", _H100, 1),
        (r"p5\.48xlarge", _H100, 8),
        (r"p5en?\.48xlarge", _H200, 8),
        (r"p6-b200\.48xlarge", _B200, 8),
        (r"standard_nc6s_v3", _V100, 1),
        (r"standard_nc12s_v3", _V100, 2),
        (r"standard_nc24r?s_v3", _V100, 4),
        (r"standard_nc(4|8|16)as_t4_v3", _T4, 1),
        (r"standard_nc64as_t4_v3", _T4, 4),
        (r"standard_nc24ads_a100_v4", _A100_PCIE, 1),
        (r"standard_nc48ads_a100_v4", _A100_PCIE, 2),
        (r"standard_nc96ads_a100_v4", _A100_PCIE, 4),
        (r"standard_nd96asr_v4", _A100, 8),
        (r"standard_nd96amsr_a100_v4", _A100_80, 8),
        (r"standard_nc40ads_h100_v5", _H100_NVL, 1),
        (r"standard_nc80adis_h100_v5", _H100_NVL, 2),
        (r"standard_nd96isr_h100_v5", _H100, 8),
        (r"standard_nd96isr_h200_v5", _H200, 8),
        (r"standard_nv36adm?s_a10_v5", _A10, 1),
        (r"standard_nv72ads_a10_v5", _A10, 2),
    )
)
"""Products and numbers of GPUs by instance types of AWS and Azure in lower case. The first one counts."""


@dataclass(frozen=True, slots=True)
class Model:
    """The known properties of a kind of GPU. `board` is the simulated one, if there is one."""

    memory_mib: int
    compute_capability: tuple[int, int]
    board: BoardModel | None = None


_WITHOUT_BOARD: Final = {
    "Tesla P4": Model(7680, (6, 1)),
    "Tesla P100-PCIE-16GB": Model(16384, (6, 0)),
    _V100_32: Model(32768, (7, 0)),
    "NVIDIA T4G": Model(15360, (7, 5)),
    _A10: Model(23028, (8, 6)),
    _A100_PCIE: Model(81920, (8, 0)),
    _H100_NVL: Model(95830, (9, 0)),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": Model(97887, (12, 0)),
}
"""GPUs that the simulation has no board of, as nvidia-smi shows them."""


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """The facts in labels. Empty, 0 and None stand for unknown facts.

    `product` is as GFD writes it. `gpus` is the number of GPUs. `devices` is GFD's count, which is that of MIG devices
    if they are offered as GPUs. `profile` is that of these MIG devices. `replicas` is the number of shares of a GPU, or
    of each of these MIG devices, and `mps` whether MPS shares them. `driver_root` is where a cloud has its
    NVIDIA driver.
    """

    product: str = ""
    gpus: int = 0
    devices: int = 0
    memory_mib: int = 0
    compute_capability: tuple[int, int] | None = None
    strategy: str = ""
    profile: str = ""
    replicas: int = 0
    mps: bool | None = None
    driver_root: str = ""


def facts_of(labels: Mapping[str, str]) -> LabelFacts:
    """The facts in the labels of a node."""
    cloud = _of_cloud(labels)
    found = _PRODUCT.fullmatch(labels.get(f"{GPU}.product", ""))
    product = found["model"] if found is not None else ""
    named = (found["mig"] or "") if found is not None else ""
    is_partitioned = labels.get(STRATEGY, "single") == "single" and bool(named)
    named = named if is_partitioned else labels.get(_GKE_PARTITION, "")
    profile = profile_of(f"{PREFIX}mig-{named}") or named
    devices = count_of(labels.get(f"{GPU}.count"))
    sharing = labels.get(f"{GPU}.sharing-strategy") or labels.get(_GKE_SHARING) or ""
    model = model_of(product or cloud.product)
    major, minor = (count_of(labels.get(f"{GPU}.compute.{part}")) for part in ("major", "minor"))
    return LabelFacts(
        product=product or cloud.product,
        gpus=cloud.gpus if is_partitioned else devices or cloud.gpus,
        devices=devices,
        memory_mib=(
            model.memory_mib
            if model is not None
            else (0 if is_partitioned else count_of(labels.get(f"{GPU}.memory"))) or cloud.memory_mib
        ),
        compute_capability=model.compute_capability if model is not None else (major, minor) if major else None,
        strategy=labels.get(STRATEGY, ""),
        profile=profile,
        replicas=count_of(labels.get(f"{GPU}.replicas")) or count_of(labels.get(_GKE_CLIENTS)),
        mps=sharing == "mps" if sharing not in ("", "none") else None,
        driver_root=_GKE_ROOT if GKE_ACCELERATOR in labels else "",
    )


def _of_cloud(labels: Mapping[str, str]) -> LabelFacts:
    """The product, the number of GPUs and their memory, as the labels of a cloud tell them."""
    kind = labels.get(_INSTANCE_TYPE, "").lower()
    instance = next(((product, count) for pattern, product, count in _INSTANCES if pattern.fullmatch(kind)), None)
    accelerator = labels.get(GKE_ACCELERATOR)
    if accelerator is not None:
        return LabelFacts(product=_label(_OF_GKE.get(accelerator, accelerator)))
    for prefix in _AWS:
        if name := labels.get(f"{prefix}-name"):
            memory = count_of(labels.get(f"{prefix}-memory"))
            product = _OF_AWS.get(name, name)
            least, larger = _LARGER.get(product, (0, product))
            product = larger if memory > least > 0 else product
            return LabelFacts(_label(product), gpus=count_of(labels.get(f"{prefix}-count")), memory_mib=memory)
    if instance is not None:
        return LabelFacts(_label(instance[0]), gpus=instance[1])
    if name := labels.get(f"{_AZURE}-name"):
        return LabelFacts(_label(_OF_AZURE.get(name, name)), gpus=count_of(labels.get(f"{_AZURE}-count")))
    return LabelFacts()


def is_auto_mode(labels: Mapping[str, str]) -> bool:
    """Whether EKS Auto Mode manages the node."""
    name, value = _AUTO_MODE
    return labels.get(name) == value


@functools.cache
def model_of(product: str) -> Model | None:
    """The known properties of the product of a label. None for an unknown product."""
    for board in boards().values():
        if _label(board.product_name) == product:
            return Model(board.memory_mib, board.compute_capability, board)
    return next((model for name, model in _WITHOUT_BOARD.items() if _label(name) == product), None)


def _label(product_name: str) -> str:
    """The name of a product as GFD writes it into a label."""
    return "-".join(re.sub("[^A-Za-z0-9-_. ]", "", product_name).split())


def count_of(value: object) -> int:
    """The whole number in a label or amount, 0 for another text."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 0
