# SPDX-License-Identifier: Apache-2.0
"""Descriptions of simulated nodes: what they mean, and what a mistake is answered with."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.gpu.imex import fabric_of, read_channels, read_management
from dra_driver.gpu.nvml import Return
from dra_driver.gpu.simulated import DescriptionError, load_description, shipped_nodes
from dra_driver.gpu.simulated.board import boards
from dra_driver.gpu.simulated.description import (
    FabricDescription,
    GpuDescription,
    InstanceDescription,
    NodeDescription,
    decode_description,
    encode_description,
    parse_description,
)
from dra_driver.gpu.simulated.faults import Fault
from tests.support.hostile import HOSTILE
from tests.support.nodes import make_node

VERSIONS = 'driverVersion: 570.158.01\ncudaVersion: "12.8"\n'
H100 = "model: H100-SXM5-80GB"

MISTAKES = {
    "": "driverVersion: is required",
    "- a": "must be an object, not a list",
    "driverVersion: 570.158.01\ncudaVersion: 12.8": "cudaVersion: must be a string, not a number",
    'driverVersion: 570.158.01\ncudaVersion: "12"': "cudaVersion: '12' is not a dotted number such as 12.8",
    'driverVersion: ../570.1\ncudaVersion: "12.8"': "driverVersion: '../570.1' is not a dotted number",
    VERSIONS + "gpu: []": "gpu: unknown field; did you mean 'gpus'?",
    VERSIONS + "gpus: [{}]": "gpus[0].model: is required",
    VERSIONS + "gpus: [{model: V100}]": "gpus[0].model: 'V100' is not simulated (there are A100-SXM4-40GB, ",
    VERSIONS + f"gpus: [{{{H100}, count: 0}}]": "gpus[0].count: must be from 1 to 240, not 0",
    VERSIONS
    + f"gpus: [{{{H100}, numaNodes: [0, 1]}}]": "gpus[0].numaNodes: must have one entry for each GPU (1), has 2",
    VERSIONS + f"gpus: [{{{H100}, numaNodes: ['0']}}]": "gpus[0].numaNodes: must be a list of int",
    VERSIONS + f"gpus: [{{{H100}, pciAddresses: ['1b:00.0']}}]": "gpus[0].pciAddresses: '1b:00.0' is not of the form",
    VERSIONS + f"gpus: [{{{H100}, pciAddresses: ['0000:1b:00.0']}}, {{{H100}, pciAddresses: ['0000:1b:00.0']}}]": (
        "gpus: two GPUs have the PCI address 0000:1b:00.0"
    ),
    VERSIONS + f"gpus: [{{{H100}, minors: [1]}}, {{{H100}, minors: [1]}}]": "gpus: two GPUs have the minor 1",
    VERSIONS + f"gpus: [{{{H100}, minors: [254]}}]": "gpus[0].minors: must be from 0 to 253",
    VERSIONS + "gpus: [{model: L40S-PCIE-48GB, mig: true}]": "gpus[0].mig: L40S-PCIE-48GB has no MIG",
    VERSIONS + "imexChannels: 2000000": "imexChannels: must be from 0 to 1048576, not 2000000",
    VERSIONS + "fabric: {clusterUUID: a, nodesPerClique: -1}": "fabric.nodesPerClique: must not be negative: -1",
    VERSIONS + f"gpus: [{{{H100}, mig: 1}}]": "gpus[0].mig: must be true or false, not a number",
    VERSIONS + f"gpus: [{{{H100}, instances: [{{profile: 1g.10gb}}]}}]": "gpus[0].instances: need mig: true",
    VERSIONS + f"gpus: [{{{H100}, mig: true, instances: [{{profile: 1g.5gb}}]}}]": (
        "gpus[0].instances[0].profile: H100-SXM5-80GB has no profile '1g.5gb' (it has 1g.10gb, 1g.10gb+me, "
    ),
    VERSIONS + f"gpus: [{{{H100}, mig: true, instances: [{{profile: 3g.40gb, start: 2}}]}}]": (
        "gpus[0].instances[0].start: 3g.40gb cannot start at memory slice 2 (possible starts: [0, 4])"
    ),
    VERSIONS + f"gpus: [{{{H100}, mig: true, instances: [{{profile: 3g.40gb}}, {{profile: 1g.10gb, start: 3}}]}}]": (
        "gpus[0].instances[1]: does not fit beside the others: memory slices of 3:1 are taken"
    ),
    VERSIONS
    + f"gpus: [{{{H100}, mig: true, instances: [{{profile: 1g.10gb+me}}, {{profile: 1g.10gb+me, start: 1}}]}}]": (
        "gpus[0].instances[1]: does not fit beside the others: no more instances of 1g.10gb+me"
    ),
    VERSIONS + "fabric: {clique: 1}": "fabric.clusterUUID: is required",
    VERSIONS + "faults: [{code: IN_USE}]": "faults[0].call: is required",
    VERSIONS + "faults: [{call: nvmlShutdown, code: BUSY}]": "faults[0].code: 'BUSY' is not a return code for nvml",
    VERSIONS + "faults: [{call: fmConnect, code: IN_USE_}]": "faults[0].code: 'IN_USE_' is not a return code for fmCo",
    VERSIONS + f"gpus: [{{{H100}}}]\npartitions: [[1], [1, 2]]": "partitions: must be lists of module IDs from 1 to 1",
    VERSIONS + "faults: [{call: nvmlShutdown, seconds: -1}]": "faults[0].seconds: must be a number of seconds up to",
    VERSIONS + f"gpus: [{{{H100}, count: 200}}, {{{H100}, count: 41}}]": "gpus: a node has at most 240, not 241",
    VERSIONS + "faults: [{call: nvmlShutdown, times: -1}]": "faults[0].times: must not be negative: -1",
}


@pytest.mark.parametrize(("text", "error"), MISTAKES.items(), ids=[error[:70] for error in MISTAKES.values()])
def test_a_mistake_is_answered_with_its_place(text: str, error: str) -> None:
    with pytest.raises(DescriptionError) as raised:
        parse_description(text, "my-node.yaml")
    assert str(raised.value).startswith(f"simulated node my-node.yaml: {error}")


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_text_that_is_no_description_is_answered_with_its_place(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(content)
    with pytest.raises(DescriptionError) as raised:
        load_description(str(path))
    assert str(raised.value).startswith(f"simulated node {path}:")
    assert "\n" not in str(raised.value)


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        DescriptionError, match=r"no simulated node 'h100x9': .* a100-40x8, .* h100x8, .* -mig, -mixed or -vgpu"
    ):
        load_description("h100x9")


def test_gpus_without_an_address_get_the_next_free_bus() -> None:
    text = (
        VERSIONS + f"gpus: [{{{H100}, count: 2}}, {{{H100}, pciAddresses: ['0000:10:00.0'], pcieRoots: [pci0000:0f]}}]"
    )
    gpus = parse_description(text, "").gpus
    assert [gpu.pci_address for gpu in gpus] == ["0000:10:00.0", "0000:11:00.0", "0000:12:00.0"]
    assert [gpu.pcie_root for gpu in gpus] == ["pci0000:0f", "pci0000:11", "pci0000:12"]
    assert [gpu.numa_node for gpu in gpus] == [-1, -1, -1]


def test_gpus_are_in_the_order_of_their_addresses_and_minors_may_be_in_another() -> None:
    addresses = ["10000:01:00.0", "0000:c3:00.0", "0000:1b:00.0", "0000:1b:1c.0"]
    text = VERSIONS + f"gpus: [{{{H100}, count: 4, pciAddresses: {addresses}, minors: [0, 5, 2, 1]}}, {{{H100}}}]"
    gpus = parse_description(text, "").gpus
    assert [(gpu.pci_address, gpu.minor) for gpu in gpus] == [
        ("0000:10:00.0", 3),
        ("0000:1b:00.0", 2),
        ("0000:1b:1c.0", 1),
        ("0000:c3:00.0", 5),
        ("10000:01:00.0", 0),
    ]


def test_a_group_is_as_many_gpus_as_its_count() -> None:
    text = VERSIONS + f"gpus: [{{{H100}, count: 2, mig: true, instances: [{{profile: 3g.40gb, start: 4}}]}}]"
    gpus = parse_description(text, "").gpus
    assert [(gpu.mig, gpu.instances) for gpu in gpus] == [(True, (InstanceDescription("3g.40gb", 4),))] * 2


@pytest.mark.parametrize("name", shipped_nodes())
def test_shipped_nodes_come_plain_split_and_mixed(name: str) -> None:
    plain, split, mixed = (load_description(name + mode) for mode in ("", "-mig", "-mixed"))
    count = len(plain.gpus)
    assert not any(gpu.mig for gpu in plain.gpus)
    can = bool(plain.gpus[0].board.profiles)
    assert [gpu.mig for gpu in split.gpus] == [can] * count
    assert [gpu.mig for gpu in mixed.gpus] == [False] * (count // 2) + [can] * (count - count // 2)
    assert [gpu.minor for gpu in plain.gpus] == list(range(count))
    assert len({gpu.pci_address for gpu in plain.gpus}) == count
    assert all(gpu.pcie_root and gpu.numa_node in (0, 1) for gpu in plain.gpus)


def test_a_file_may_describe_the_node(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(VERSIONS + f"gpus: [{{{H100}}}]\n")
    node = load_description(str(file))
    assert (node.driver_version, node.cuda_version) == ("570.158.01", "12.8")
    assert [gpu.board.model for gpu in node.gpus] == ["H100-SXM5-80GB"]


@pytest.mark.parametrize(
    ("fabric", "channels", "identity", "clique"),
    [
        ("", 0, "node-1", None),
        ("imexChannels: 16", 16, "node-1", None),
        ("fabric: {clusterUUID: a, clique: 3}", 2048, "node-40", 3),
        ("fabric: {clusterUUID: a, clique: 3}\nimexChannels: 0", 0, "node-1", 3),
        ("fabric: {clusterUUID: a, clique: 3, nodesPerClique: 9}", 2048, "node-9", 3),
        ("fabric: {clusterUUID: a, clique: 3, nodesPerClique: 9}", 2048, "node-10", 4),
        ("fabric: {clusterUUID: a, clique: 3, nodesPerClique: 9}", 2048, "node", 3),
    ],
)
def test_a_node_is_in_a_clique_and_has_channels(
    tmp_path: Path, fabric: str, channels: int, identity: str, clique: int | None
) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(f"{VERSIONS}gpus: [{{{H100}}}]\n{fabric}\n")
    for _ in range(2):  # the second time, it exists
        node = make_node(tmp_path / "node", str(file), identity)
    found = fabric_of(node.inventory())
    assert (found.clique or None) == (None if clique is None else f"a.{clique}")
    proc = node.node.driver_root / "proc"
    there = read_channels(proc)
    assert (0 if there is None else there.count) == channels
    management = read_management(proc)
    assert (management is None) == (channels == 0)
    if management is not None:
        assert (node.node.driver_root / f"dev/nvidia-caps/nvidia-cap{management.minor}").exists()


def test_the_channels_of_two_nodes_have_different_majors(tmp_path: Path) -> None:
    roots = (make_node(tmp_path / name, "gb200x4", name).node.driver_root for name in ("node-1", "node-2"))
    majors = [channels and channels.major for channels in (read_channels(root / "proc") for root in roots)]
    assert len({*majors, None}) == 3


faults = st.builds(
    Fault,
    call=st.sampled_from(["nvmlShutdown", "nvmlDeviceGetName"]),
    gpu=st.none() | st.integers(0, 15),
    code=st.none() | st.sampled_from(Return),
    seconds=st.floats(0, 10),
    times=st.integers(0, 5),
)


@st.composite
def nodes(draw: st.DrawFn) -> NodeDescription:
    """Any node."""
    gpus = []
    minors = draw(st.lists(st.integers(0, 253), max_size=3, unique=True))
    domains = draw(st.lists(st.integers(0, 0xFFFFF), min_size=3, max_size=3).map(sorted))
    for index, minor in enumerate(minors):
        board = draw(st.sampled_from(list(boards().values())))
        mig = bool(board.profiles) and draw(st.booleans())
        instances: tuple[InstanceDescription, ...] = ()
        if mig and draw(st.booleans()):
            profile = draw(st.sampled_from(board.profiles))
            instances = (InstanceDescription(profile.info.name, draw(st.sampled_from(profile.placements)).start),)
        vgpu = draw(st.booleans())
        address = f"{domains[index]:04x}:{index:02x}:00.0"
        gpus.append(GpuDescription(board, address, draw(st.integers(-1, 3)), "pci0000:15", minor, mig, instances, vgpu))
    fabrics = st.builds(FabricDescription, st.uuids().map(str), st.integers(0, 9), st.integers(0, 18))
    fabric, channels = draw(st.none() | fabrics), draw(st.sampled_from([0, 16, 2048]))
    errors = tuple(draw(st.lists(faults, max_size=2)))
    return NodeDescription("570.158.01", "12.8", tuple(gpus), fabric, errors, imex_channels=channels)


@given(nodes())
def test_a_description_survives_being_stored(node: NodeDescription) -> None:
    assert decode_description(json.loads(json.dumps(encode_description(node)))) == node
