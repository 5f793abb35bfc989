# SPDX-License-Identifier: Apache-2.0
"""Node labels: the rules of GPU Feature Discovery as cases."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.facts import Failure, Gpu, Inventory
from dra_driver.gpu.labels import Labels, node_labels
from dra_driver.gpu.nvml import Fabric, FabricState
from dra_driver.gpu.policy import Enforcement, GpuRule, NodePolicy, ShareMode
from dra_driver.gpu.simulated.board import boards
from tests.support.nodes import CLUSTER_UUID, board_gpu, board_inventory, make_node, mig_instances

A100, H100, T4 = (boards()[name] for name in ("A100-SXM4-40GB", "H100-SXM5-80GB", "T4-PCIE-16GB"))


def labels_of(inventory: Inventory, policy: NodePolicy | None = None, sys_root: Path = Path("/nonexistent")) -> Labels:
    """The labels, without the prefix of their names."""
    found = node_labels((inventory, frozenset()), policy or NodePolicy(), sys_root)
    assert found is not None
    assert all(name.startswith("nvidia.com/") for name in found)
    return {name.removeprefix("nvidia.com/"): value for name, value in found.items()}


def node_of(*gpus: Gpu, version: str = "580.82.07") -> Inventory:
    return Inventory(version, 13010, tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus)))


def split(gpu: Gpu, *names: str) -> Gpu:
    """The GPU with a MIG device of each of these profiles, at its first placement."""
    profiles = {one.info.name: one for one in A100.profiles}
    return replace(
        gpu, mig_instances=mig_instances(gpu, [(profiles[name], profiles[name].placements[0]) for name in names])
    )


def capable(major: int, minor: int) -> Inventory:
    return node_of(replace(board_gpu(T4, 0), compute_capability=(major, minor)))


def shared(shares: ShareMode | int, enforce: Enforcement = Enforcement.NONE) -> NodePolicy:
    return NodePolicy((GpuRule(shares=shares, enforce=enforce),), mps=True)


whole, small, mig = board_gpu(A100, 0), board_gpu(T4, 0), board_gpu(A100, 0, mig=True)
none = {"gpu.replicas": "1", "gpu.sharing-strategy": "none"}

CASES: Mapping[str, tuple[Inventory, NodePolicy | None, Mapping[str, str | None]]] = {
    "versions of three parts": (
        node_of(whole, version="535.104.05"),
        None,
        {
            "cuda.driver.major": "535",
            "cuda.driver.minor": "104",
            "cuda.driver.rev": "05",
            "cuda.driver-version.major": "535",
            "cuda.driver-version.minor": "104",
            "cuda.driver-version.revision": "05",
            "cuda.driver-version.full": "535.104.05",
            "cuda.runtime.major": "13",
            "cuda.runtime.minor": "1",
            "cuda.runtime-version.major": "13",
            "cuda.runtime-version.minor": "1",
            "cuda.runtime-version.full": "13.1",
        },
    ),
    "a version of two parts": (node_of(whole, version="610.43"), None, {"cuda.driver.rev": ""}),
    "whole GPUs": (
        node_of(whole, whole),
        None,
        {
            "gpu.product": "NVIDIA-A100-SXM4-40GB",
            "gpu.count": "2",
            **none,
            "gpu.memory": "40960",
            "gpu.family": "ampere",
            "gpu.compute.major": "8",
            "gpu.compute.minor": "0",
            "gpu.machine": "unknown",
            "gpu.mode": "unknown",
            "mig.capable": "true",
            "mig.strategy": "mixed",
            "mps.capable": "false",
            "vgpu.present": "false",
        },
    ),
    "a GPU without MIG": (node_of(small), None, {"mig.capable": "false", "gpu.family": "turing"}),
    "a vGPU": (node_of(replace(small, is_vgpu=True)), None, {"vgpu.present": "true"}),
    "characters that a label cannot have": (
        node_of(replace(small, product_name="NVIDIA (R)  X/Y_1.0")),
        None,
        {"gpu.product": "NVIDIA-R-XY_1.0"},
    ),
    "several models": (node_of(small, whole, whole), None, {"gpu.product": "Tesla-T4", "gpu.count": "1"}),
    "a model with MIG and without": (node_of(mig, whole), None, {"gpu.count": "2", **none}),
    "only GPUs in MIG mode": (
        node_of(mig),
        None,
        {"gpu.count": "1", "gpu.replicas": "0", "gpu.sharing-strategy": "none"},
    ),
    "replicas": (
        node_of(small),
        shared(4),
        {"gpu.product": "Tesla-T4-SHARED", "gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"},
    ),
    "replicas with MPS": (
        node_of(small),
        shared(4, Enforcement.MPS),
        {"gpu.sharing-strategy": "mps", "mps.capable": "true"},
    ),
    "shares without a number": (node_of(small), shared(ShareMode.MEMORY), {"gpu.product": "Tesla-T4", **none}),
    "MIG devices": (
        node_of(split(mig, "1g.5gb", "3g.20gb"), split(mig, "1g.5gb")),
        None,
        {
            "gpu.product": "NVIDIA-A100-SXM4-40GB",
            "mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
            "mig-1g.5gb.count": "2",
            "mig-1g.5gb.replicas": "1",
            "mig-1g.5gb.sharing-strategy": "none",
            "mig-1g.5gb.memory": "4864",
            "mig-1g.5gb.multiprocessors": "14",
            "mig-1g.5gb.slices.gi": "1",
            "mig-1g.5gb.slices.ci": "1",
            "mig-1g.5gb.engines.copy": "1",
            "mig-1g.5gb.engines.decoder": "0",
            "mig-1g.5gb.engines.encoder": "0",
            "mig-1g.5gb.engines.jpeg": "0",
            "mig-1g.5gb.engines.ofa": "0",
            "mig-3g.20gb.count": "1",
            "mig-3g.20gb.slices.gi": "3",
        },
    ),
    "a profile with a plus sign": (node_of(split(mig, "1g.5gb+me")), None, {"mig-1g.5gb.me.count": "1"}),
    "a clique": (board_inventory(H100, 2), None, {"gpu.clique": f"{CLUSTER_UUID}.1"}),
    "GPUs that do not agree about the clique": (
        node_of(whole, replace(whole, fabric=Fabric(FabricState.COMPLETED, CLUSTER_UUID, 2))),
        None,
        {"gpu.clique": None},
    ),
    "a GPU outside of the fabric": (
        node_of(whole, replace(whole, fabric=None)),
        None,
        {"gpu.clique": f"{CLUSTER_UUID}.1"},
    ),
    "no fabric": (node_of(replace(whole, fabric=None)), None, {"gpu.clique": None}),
    **{
        f"the family {family}": (capable(*capability), None, {"gpu.family": family})
        for capability, family in {
            (2, 0): "undefined",
            (3, 5): "kepler",
            (5, 0): "maxwell",
            (6, 1): "pascal",
            (7, 0): "volta",
            (8, 6): "ampere",
            (8, 9): "ada-lovelace",
            (9, 0): "hopper",
            (10, 0): "blackwell",
            (12, 0): "blackwell",
            (13, 0): "rubin",
        }.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_labels_have_the_names_and_values_of_gpu_feature_discovery(name: str) -> None:
    inventory, policy, expected = CASES[name]
    found = labels_of(inventory, policy)
    assert {name: found.get(name) for name in expected} == expected


def test_a_simulated_node_has_the_mode_of_its_gpus_and_the_machine_of_its_firmware(tmp_path: Path) -> None:
    node = make_node(tmp_path, "h100x8")
    firmware = node.sys_root / "class/dmi/id"
    firmware.mkdir(parents=True)
    (firmware / "product_name").write_text("DGX H100 (rev. 2)\n", encoding="ascii")
    found = labels_of(node.inventory(), sys_root=node.sys_root)
    assert (found["gpu.mode"], found["gpu.machine"]) == ("compute", "DGX-H100-rev.-2")


def test_mig_devices_of_claims_are_not_counted() -> None:
    gpu = split(mig, "1g.5gb", "3g.20gb")
    places = frozenset(one.device for one in gpu.mig_instances[:1])
    found = node_labels((node_of(gpu), places), NodePolicy(), Path("/nonexistent")) or {}
    assert {name for name in found if name.endswith(".count")} == {
        "nvidia.com/gpu.count",
        "nvidia.com/mig-3g.20gb.count",
    }


def test_labels_stay_while_no_gpu_can_be_read() -> None:
    failed = Inventory("580.82.07", None, (), (Failure(0, "a call hangs"),))
    for seen, expected in ((None, None), ((failed, frozenset()), None), ((node_of(), frozenset()), {})):
        assert node_labels(seen, NodePolicy(), Path("/nonexistent")) == expected
