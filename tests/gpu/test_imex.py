# SPDX-License-Identifier: Apache-2.0
"""IMEX channels from /proc, and the fabric of a node from its GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.errors import ImexFilesError
from dra_driver.gpu.fabric import Partition, SwitchFacts
from dra_driver.gpu.facts import Inventory
from dra_driver.gpu.imex import (
    MANAGEMENT,
    Channels,
    DeviceNumbers,
    FabricProgress,
    NodeFabric,
    fabric_of,
    read_channels,
    read_management,
)
from dra_driver.gpu.nvml import Fabric, FabricState, MigMode
from dra_driver.gpu.simulated.board import boards
from tests.support.nodes import CLUSTER_UUID, board_inventory

DEVICES = (
    "Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n{}\nBlock devices:\n  7 nvidia-caps-imex-channels\n"
)
WITH_CHANNELS = DEVICES.format("234 nvidia-caps-imex-channels\n")
PARAMS = "driver/nvidia/params"
CAPABILITY = "DeviceFileMinor: 12\nDeviceFileMode: 256\nDeviceFileModify: 1\n"


def proc(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({"devices": DEVICES.format("")}, None),  # a block driver of that name is none
        ({"devices": WITH_CHANNELS}, Channels(234, 2048)),
        ({"devices": WITH_CHANNELS, PARAMS: "ModifyDeviceFiles: 1\nImexChannelCount: 16\n"}, Channels(234, 16)),
        ({"devices": WITH_CHANNELS, PARAMS: "ImexChannelCount: 0\n"}, None),
    ],
)
def test_channels_are_read_from_the_driver(tmp_path: Path, files: dict[str, str], found: Channels | None) -> None:
    assert read_channels(proc(tmp_path, files)) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"devices": WITH_CHANNELS}, None),
        ({"devices": "", MANAGEMENT: CAPABILITY}, None),
        ({"devices": WITH_CHANNELS, MANAGEMENT: CAPABILITY}, DeviceNumbers(235, 12)),
    ],
)
def test_the_capability_of_the_daemon(tmp_path: Path, files: dict[str, str], found: DeviceNumbers | None) -> None:
    assert read_management(proc(tmp_path, files)) == found


def test_files_that_cannot_be_understood_are_named(tmp_path: Path) -> None:
    proc(tmp_path, {"devices": WITH_CHANNELS, PARAMS: "ImexChannelCount: many\n", MANAGEMENT: "DeviceFileMode: 1\n"})
    with pytest.raises(ImexFilesError, match="params: ImexChannelCount is 'many'"):
        read_channels(tmp_path)
    with pytest.raises(ImexFilesError, match="fabric-imex-mgmt: DeviceFileMinor is ''"):
        read_management(tmp_path)
    proc(tmp_path, {PARAMS: "ImexChannelCount: 9999999\n"})
    with pytest.raises(ImexFilesError, match="9999999, more than"):
        read_channels(tmp_path)


HERE = Fabric(FabricState.COMPLETED, CLUSTER_UUID, 1)
OTHER = Fabric(FabricState.COMPLETED, CLUSTER_UUID, 2)
LOCAL = Fabric(FabricState.COMPLETED, "00000000-0000-0000-0000-000000000000", 0)
WAITING = Fabric(FabricState.IN_PROGRESS)
IDLE = Fabric(FabricState.NOT_STARTED)
BROKEN = Fabric(FabricState.COMPLETED, "", 0, 5)
NONE = NodeFabric(FabricProgress.NONE)
JOINED = NodeFabric(FabricProgress.COMPLETED, f"{CLUSTER_UUID}.1")
PARTITIONS = SwitchFacts((Partition(0, (1,)),), True)


def node(*fabrics: Fabric | None, mig: bool = False) -> Inventory:
    inventory = board_inventory(boards()["H100-SXM5-80GB"], len(fabrics))
    gpus = zip(inventory.gpus, fabrics, strict=True)
    mode = MigMode(mig, mig)
    return replace(inventory, gpus=tuple(replace(gpu, fabric=fabric, mig_mode=mode) for gpu, fabric in gpus))


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        (node(), NONE),
        (node(None, None), NONE),
        (node(HERE, HERE), JOINED),
        (node(HERE, None), JOINED),
        (node(LOCAL, LOCAL), NONE),
        (node(LOCAL, WAITING), NONE),  # a GPU outside of the active partitions of this node
        (replace(node(WAITING), switches=PARTITIONS), NONE),
        (replace(node(HERE), switches=PARTITIONS), JOINED),
        (node(WAITING, mig=True), NONE),
        (
            node(HERE, IDLE, WAITING),
            NodeFabric(FabricProgress.IN_PROGRESS, problem="not yet in the NVLink fabric: GPU 1, GPU 2"),
        ),
        (
            node(HERE, BROKEN, WAITING),
            NodeFabric(FabricProgress.FAILED, problem="GPUs could not join the NVLink fabric (GPU 1: status 5)"),
        ),
        (
            node(HERE, OTHER),
            NodeFabric(
                FabricProgress.FAILED,
                problem="the GPUs of the node are in several cliques"
                f" (GPU 0: {CLUSTER_UUID}.1, GPU 1: {CLUSTER_UUID}.2)",
            ),
        ),
    ],
)
def test_the_fabric_of_a_node(inventory: Inventory, expected: NodeFabric) -> None:
    assert fabric_of(inventory) == expected
