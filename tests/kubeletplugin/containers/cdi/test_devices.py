# SPDX-License-Identifier: Apache-2.0
"""What a container gets for each allocated device: a whole GPU, or a MIG device."""

import json
from pathlib import Path

import pytest

from dra_driver.names import AdditionalDevice
from kubeletplugin.containers.cdi import (
    ADDITIONAL_DEVICES,
    CLAIM_KIND,
    ContainerEdits,
    DriverFilesError,
    DriverRoot,
    HookTool,
    claim_device,
    claim_spec,
    find_additional,
    gpu_edits,
    mig_edits,
)
from kubeletplugin.containers.cdi.files import additional_gids
from kubeletplugin.containers.cdi.spec import DeviceNode, dumps, validate
from tests.support.nodes import driver_root_of

from .trees import MAJORS, Terminal, file, kernel, link

ADDRESS = "0000:17:00.0"
UID = "9f53c0e5-9f54-647d-a53c-73174df363ba"
GPU_NODE = DeviceNode("/dev/nvidia3", type="c", major=195, minor=3, permissions="rw")


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    """A node whose GPU 3 has GPU instance 1 with compute instance 0; its device nodes are not made yet."""
    kernel(tmp_path, MAJORS, {"gpu3/mig/gi1/access": 417, "gpu3/mig/gi1/ci0/access": 418})
    return driver_root_of(tmp_path)


def drm(root: DriverRoot, *names: str, at: str = "/dev/null") -> None:
    """DRM nodes of the GPU, with the device `at` standing in for each."""
    for name in names:
        (root.sys / "bus/pci/devices" / ADDRESS / "drm" / name).mkdir(parents=True)
        link(root.dev.path, f"/dev/dri/{name}", at)


def test_a_whole_gpu_is_its_own_node(root: DriverRoot) -> None:
    found = gpu_edits(root, 3, ADDRESS)
    assert found.edits.device_nodes == (GPU_NODE,)
    assert found.warnings == ()


@pytest.mark.parametrize("address", [ADDRESS, "00000000:17:00.0"])
def test_a_gpu_that_drives_displays_brings_its_drm_nodes(root: DriverRoot, address: str) -> None:
    drm(root, "card1", "renderD128")
    (root.sys / "bus/pci/devices" / ADDRESS / "drm/card1-DP-1").mkdir()  # a connector has no node
    nodes = gpu_edits(root, 3, address).edits.device_nodes
    assert [node.path for node in nodes] == ["/dev/nvidia3", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert [(node.major, node.minor) for node in nodes[1:]] == [(1, 3), (1, 3)], "the numbers of /dev/null"


def test_drm_nodes_of_a_group_can_be_opened_by_containers_that_are_not_roots(
    root: DriverRoot, terminal: Terminal
) -> None:
    drm(root, "renderD128", at="/dev/null")  # for everybody
    for name in ("card0", "card1"):
        drm(root, name, at=terminal.path)
    edits = gpu_edits(root, 3, ADDRESS).edits
    assert edits.device_nodes[1:] == (
        *(
            DeviceNode(f"/dev/dri/{name}", "", "c", *terminal.numbers, 0o660, "rw", gid=terminal.gid)
            for name in ("card0", "card1")
        ),
        DeviceNode("/dev/dri/renderD128", "", "c", 1, 3, 0o666, "rw"),
    )
    assert edits.additional_gids == (terminal.gid,)


def test_the_names_of_additional_devices_are_those_of_policies_and_configurations() -> None:
    assert list(ADDITIONAL_DEVICES) == list(AdditionalDevice)


@pytest.mark.parametrize(
    ("name", "others", "nodes", "mounts"),
    [
        ("gds", ("nvidia0", "nvidia1"), ("nvidia-fs0", "nvidia-fs15"), ("/run/udev", "/etc/cufile.json")),
        ("gdrcopy", ("gdrdrv2",), ("gdrdrv",), ()),
        (
            "mofed",
            ("infiniband/umad0", "infiniband/issm0"),
            ("infiniband/rdma_cm", "infiniband/uverbs0", "infiniband/uverbs1"),
            (),
        ),
        ("nvswitch", ("nvidiactl",), ("nvidia-nvswitch0", "nvidia-nvswitchctl"), ()),
    ],
)
def test_additional_devices_are_found_by_their_names(
    root: DriverRoot,
    name: str,
    others: tuple[str, ...],
    nodes: tuple[str, ...],
    mounts: tuple[str, ...],
    terminal: Terminal,
) -> None:
    (root.files.path / "run/udev").mkdir(parents=True)
    file(root.files.path, "/etc/cufile.json")
    for one in others:
        link(root.dev.path, f"/dev/{one}", terminal.path)
    assert find_additional(root, name).edits == ContainerEdits(), "also without what is mounted with it"
    for one in nodes:
        link(root.dev.path, f"/dev/{one}", terminal.path)
    found = find_additional(root, name)
    numbers = ("c", *terminal.numbers, 0o660, "rw")
    assert found.edits.device_nodes == tuple(DeviceNode(f"/dev/{one}", "", *numbers, gid=terminal.gid) for one in nodes)
    assert tuple(one.container_path for one in found.edits.mounts) == mounts
    assert found.edits.additional_gids == (terminal.gid,)
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("mode", "gid", "gids"),
    [
        (0o660, 44, (44,)),
        (0o664, 44, (44,)),  # others may read, not write
        (0o662, 44, (44,)),
        (0o666, 44, ()),
        (0o660, None, ()),  # root's
        (None, 44, ()),  # nobody knows who may
    ],
)
def test_a_group_is_needed_for_what_is_not_everybodys(mode: int | None, gid: int | None, gids: tuple[int, ...]) -> None:
    assert additional_gids([DeviceNode("/dev/dri/card0", file_mode=mode, gid=gid)]) == gids


def test_drm_nodes_that_the_node_does_not_have_are_left_out(root: DriverRoot) -> None:
    drm(root, "card1")
    root.dev.here("/dev/dri/card1").unlink()
    assert gpu_edits(root, 3, ADDRESS).edits.device_nodes == (GPU_NODE,)


@pytest.fixture
def linked(root: DriverRoot) -> DriverRoot:
    """The same node with a DRM node and the links that udev makes, of which one leads nowhere."""
    (root.sys / "bus/pci/devices" / ADDRESS / "drm/card1").mkdir(parents=True)
    file(root.dev.path, "/dev/dri/card1")
    link(root.dev.path, f"/dev/dri/by-path/pci-{ADDRESS}-card", "../card1")
    link(root.dev.path, f"/dev/dri/by-path/pci-{ADDRESS}-render", "../renderD128")
    return root


LINKED = ("nvidia-cdi-hook", "create-symlinks", "--link", f"../card1::/dev/dri/by-path/pci-{ADDRESS}-card")


def test_links_by_path_are_made_by_the_hook_program(linked: DriverRoot) -> None:
    (hook,) = gpu_edits(linked, 3, ADDRESS, HookTool("/usr/bin/nvidia-cdi-hook")).edits.hooks
    assert hook.args == LINKED
    assert gpu_edits(linked, 3, ADDRESS).edits.hooks == ()


def test_a_node_that_exists_has_its_own_numbers_and_host_path(tmp_path: Path) -> None:
    kernel(tmp_path, MAJORS)
    link(tmp_path, "/dev/nvidia3", "/dev/null")
    (node,) = gpu_edits(driver_root_of(tmp_path, "/host"), 3).edits.device_nodes
    assert node == DeviceNode("/dev/nvidia3", "/host/dev/nvidia3", "c", 1, 3, file_mode=0o666, permissions="rw")


def test_a_simulated_gpu_node_that_is_a_plain_file_is_taken_and_reported(tmp_path: Path) -> None:
    file(tmp_path, "/dev/nvidia3")
    found = gpu_edits(driver_root_of(tmp_path), 3)
    assert found.edits.device_nodes == (DeviceNode("/dev/nvidia3", permissions="rw"),), "the runtime has to look itself"
    assert found.warnings == (f"{tmp_path}/dev/nvidia3 is not a character device",)


def test_a_gpu_of_an_older_driver_is_found_by_the_older_name(tmp_path: Path) -> None:
    kernel(tmp_path, {"nvidia-frontend": 195})
    assert gpu_edits(driver_root_of(tmp_path), 3).edits.device_nodes == (GPU_NODE,)


def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DriverFilesError, match=r"dev/nvidia3 is missing and .*is the nvidia module loaded\?"):
        gpu_edits(driver_root_of(tmp_path), 3)


def test_a_mig_device_is_its_gpus_node_and_two_capabilities(root: DriverRoot) -> None:
    drm(root, "card1")
    assert mig_edits(root, 3, 1, 0).edits.device_nodes == (
        GPU_NODE,
        DeviceNode("/dev/nvidia-caps/nvidia-cap417", "", "c", 235, 417, file_mode=0o444, permissions="rw"),
        DeviceNode("/dev/nvidia-caps/nvidia-cap418", "", "c", 235, 418, file_mode=0o444, permissions="rw"),
    )


def test_a_mig_device_for_graphics_has_its_gpus_drm_nodes_and_links_too(linked: DriverRoot, terminal: Terminal) -> None:
    drm(linked, "card0", at=terminal.path)
    hook = HookTool("/usr/bin/nvidia-cdi-hook")
    plain = mig_edits(linked, 3, 1, 0, hook=hook)
    assert (plain.edits.hooks, plain.edits.additional_gids, plain.warnings) == ((), (), ())
    found = mig_edits(linked, 3, 1, 0, ADDRESS, hook)
    assert [node.path for node in found.edits.device_nodes] == [
        *(node.path for node in plain.edits.device_nodes),
        "/dev/dri/card0",
        "/dev/dri/card1",
    ]
    assert [one.args for one in found.edits.hooks] == [LINKED]
    assert found.edits.additional_gids == (terminal.gid,)
    assert found.warnings == (f"{linked.dev.path}/dev/dri/card1 is not a character device",)


@pytest.mark.parametrize(("gpu_instance", "compute_instance"), [(2, 0), (1, 1)])
def test_an_instance_that_is_not_there_is_an_error(root: DriverRoot, gpu_instance: int, compute_instance: int) -> None:
    with pytest.raises(DriverFilesError, match=rf"gi{gpu_instance}.*access is missing: no such instance exists"):
        mig_edits(root, 3, gpu_instance, compute_instance)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (
            "/proc/devices",
            "Character devices:\n195 nvidia\n\nBlock devices:\n  9 nvidia-caps\n",
            "no entry nvidia-caps",
        ),
        ("/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", "", "does not have the DeviceFileMinor"),
        ("/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access", "DeviceFileMinor: x\n", "does not have the Dev"),
    ],
)
def test_facts_missing_in_proc_are_an_error(root: DriverRoot, path: str, text: str, message: str) -> None:
    file(root.files.path, path, text)
    with pytest.raises(DriverFilesError, match=message):
        mig_edits(root, 3, 1, 0)


def test_a_claims_spec_names_its_devices_by_claim(root: DriverRoot) -> None:
    spec = claim_spec(UID, {"gpu-3": gpu_edits(root, 3).edits, "gpu-3-mig-1g10gb-0-0": mig_edits(root, 3, 1, 0).edits})
    assert validate(spec) == []
    assert [f"{CLAIM_KIND}={device.name}" for device in spec.devices] == [
        claim_device(UID, "gpu-3"),
        claim_device(UID, "gpu-3-mig-1g10gb-0-0"),
    ]
    assert json.loads(dumps(spec)) == {
        "cdiVersion": "0.5.0",
        "kind": "k8s.gpu.nvidia.com/claim",
        "devices": [
            {
                "name": f"{UID}-gpu-3",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3, "permissions": "rw"}
                    ]
                },
            },
            {
                "name": f"{UID}-gpu-3-mig-1g10gb-0-0",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3, "permissions": "rw"},
                        *(
                            {
                                "path": f"/dev/nvidia-caps/nvidia-cap{minor}",
                                "type": "c",
                                "major": 235,
                                "minor": minor,
                                "fileMode": 292,
                                "permissions": "rw",
                            }
                            for minor in (417, 418)
                        ),
                    ]
                },
            },
        ],
    }
