# SPDX-License-Identifier: Apache-2.0
"""The CDI spec of what every container needs follows the node, and what is in its way is told."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.mig import MigDevice, MigInstance
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.simulated import SimulatedNode
from dra_driver.names import AdditionalDevice
from kubeletplugin.claims.model import ClaimRef, Device, Plan, Record, State
from kubeletplugin.claims.specs import ClaimSpecs
from kubeletplugin.containers.cdi import BASE_KIND, HookTool, SpecDirectory
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.additional_devices import AdditionalDevicesStep
from kubeletplugin.kinds.mig.device import MigKind, encode_instance
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node
from tests.kubeletplugin.containers.cdi.trees import MAJORS, VERSION, file, kernel, libraries, link, program
from tests.support.nodes import driver_root_of, hardware_of

FOLDER = "/usr/lib/x86_64-linux-gnu"
PERSISTENCED = "/run/nvidia-persistenced/socket"
FABRIC_MANAGER = "/run/nvidia-fabricmanager/socket"
HOOK = "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
UVM = "/dev/nvidia-uvm"
MIG = "gpu-0-mig-1g24gb-gfx-47-0"
ADDRESS = "0000:1b:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A node without daemons, hook program and nvidia-uvm."""
    root = tmp_path / "node"
    libraries(root, FOLDER)
    kernel(root, {name: major for name, major in MAJORS.items() if name != "nvidia-uvm"})
    return root


@pytest.fixture
def spec(tree: Path, tmp_path: Path) -> CommonSpec:
    """Written for the node as it is."""
    root = driver_root_of(tree)
    made = CommonSpec(tmp_path / "cdi", root, hook_roots=[root.files])
    made.write(VERSION)
    return made


def path_of(spec: CommonSpec) -> Path:
    return SpecDirectory(spec.directory, BASE_KIND).file()


def said(spec: CommonSpec) -> dict[str, set[str]]:
    """What the spec has of what comes and goes."""
    edits: dict[str, Any] = json.loads(path_of(spec).read_text())["containerEdits"]
    mounts = {one["containerPath"] for one in edits["mounts"]}
    return {
        "sockets": mounts & {PERSISTENCED, FABRIC_MANAGER},
        "nodes": {one["path"] for one in edits["deviceNodes"]} & {UVM},
        "hooks": {one["path"] for one in edits.get("hooks", ())},
    }


def record() -> Record:
    """A prepared claim with a MIG device for graphics."""
    device = MigDevice("GPU-0", 47, Placement(0, 1), 0, "1g.24gb+gfx", 1, ADDRESS)
    plan = Plan(ClaimRef("team", "claim", "u1"), "node-a", (Device(MIG, "mig", MigKind(device)),))
    return Record(State.PREPARED, "boot", plan, {MIG: encode_instance(MigInstance(device, 1, 0, "MIG-1"))})


@pytest.mark.parametrize(
    ("come", "go", "what"),
    [
        (lambda tree: file(tree, PERSISTENCED), lambda tree: (tree / PERSISTENCED[1:]).unlink(), "sockets"),
        (lambda tree: file(tree, FABRIC_MANAGER), lambda tree: shutil.rmtree(tree / "run"), "sockets"),
        (lambda tree: kernel(tree, MAJORS), lambda tree: kernel(tree, {"nvidiactl": 195}), "nodes"),
        (lambda tree: program(tree, HOOK), lambda tree: (tree / HOOK[1:]).unlink(), "hooks"),
    ],
    ids=["nvidia-persistenced", "Fabric Manager", "nvidia-uvm", "the hook program"],
)
def test_later_changes_of_the_node_are_followed(
    spec: CommonSpec, tree: Path, come: Callable[[Path], object], go: Callable[[Path], object], what: str
) -> None:
    assert said(spec)[what] == set()
    come(tree)
    spec.keep()
    assert len(said(spec)[what]) == 1
    go(tree)
    spec.keep()
    assert said(spec)[what] == set()


def test_unchanged_node_causes_no_write(spec: CommonSpec) -> None:
    before = path_of(spec).stat().st_mtime_ns
    spec.keep()
    spec.restore()
    assert path_of(spec).stat().st_mtime_ns == before


@pytest.mark.parametrize("again", [CommonSpec.keep, CommonSpec.restore])
def test_deleted_spec_is_written_again(spec: CommonSpec, again: Callable[[CommonSpec], object]) -> None:
    before = path_of(spec).read_bytes()
    path_of(spec).unlink()
    again(spec)
    assert path_of(spec).read_bytes() == before


def test_before_a_driver_was_found_there_is_nothing_to_keep(tree: Path, tmp_path: Path) -> None:
    spec = CommonSpec(tmp_path / "cdi", driver_root_of(tree))
    spec.keep()
    spec.restore()
    assert spec.problem() is None
    assert not spec.directory.exists()


def test_a_hook_program_that_was_named_is_not_searched_for(tree: Path, tmp_path: Path) -> None:
    root = driver_root_of(tree)
    spec = CommonSpec(tmp_path / "cdi", root, HookTool("/opt/nvidia-ctk"), [root.files])
    spec.write(VERSION)
    before = path_of(spec).stat().st_mtime_ns
    program(tree, HOOK)
    spec.keep()
    assert said(spec)["hooks"] == {"/opt/nvidia-ctk"}
    assert path_of(spec).stat().st_mtime_ns == before


class TestTrouble:
    """What is in the way is told, tried again, and stops nothing that works."""

    def test_a_spec_that_cannot_be_brought_up_to_date_stays_and_is_told_once(
        self, spec: CommonSpec, tree: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = path_of(spec).read_bytes()
        (tree / FOLDER[1:]).rename(tree / "aside")
        for _ in range(3):
            spec.keep()
        assert "cannot be written" in (spec.problem() or "")
        assert [one.levelname for one in caplog.records].count("ERROR") == 1
        spec.restore()
        assert path_of(spec).read_bytes() == before
        (tree / "aside").rename(tree / FOLDER[1:])
        spec.keep()
        assert spec.problem() is None

    def test_a_folder_that_cannot_be_written_is_tried_again(self, spec: CommonSpec) -> None:
        shutil.rmtree(spec.directory)
        spec.directory.write_text("in the way")
        spec.keep()
        assert str(spec.directory) in (spec.problem() or "")
        with pytest.raises(NotADirectoryError):
            spec.restore()
        spec.directory.unlink()
        spec.keep()
        assert spec.problem() is None
        assert path_of(spec).exists()

    def test_without_the_drivers_files_a_deleted_one_is_missed(self, spec: CommonSpec, tree: Path) -> None:
        path_of(spec).unlink()
        shutil.rmtree(tree / FOLDER[1:])
        with pytest.raises(PrepareError, match=VERSION):
            spec.restore()


class TestClaims:
    """Specs of claims are of use beside the common one only."""

    @pytest.fixture
    def specs(self, spec: CommonSpec, tree: Path) -> ClaimSpecs:
        capabilities = {"gpu0/mig/gi1/access": 10, "gpu0/mig/gi1/ci0/access": 11}
        kernel(tree, MAJORS, capabilities)
        hardware = hardware_of(tree, SimulatedNode(tree).nvml)
        node = Node("node-a", "boot", NodeFolders(tree, tree / "plugin", spec.directory, tree / "shm", hardware))
        return ClaimSpecs(node, spec)

    @pytest.mark.parametrize("call", [ClaimSpecs.write, ClaimSpecs.ensure])
    @pytest.mark.parametrize("written", [True, False])
    def test_describing_a_claim_brings_the_common_one_back(
        self, spec: CommonSpec, specs: ClaimSpecs, call: Callable[[ClaimSpecs, Record], None], written: bool
    ) -> None:
        if written:
            specs.write(record())
        path_of(spec).unlink()
        call(specs, record())
        assert path_of(spec).exists()
        assert specs.devices("u1") == {MIG}

    def test_a_mig_device_for_graphics_gets_the_drm_nodes_of_its_gpu(
        self, spec: CommonSpec, specs: ClaimSpecs, tree: Path
    ) -> None:
        (tree / f"sys/bus/pci/devices/{ADDRESS}/drm/card0").mkdir(parents=True)
        file(tree, "/dev/dri/card0")
        link(tree, f"/dev/dri/by-path/pci-{ADDRESS}-card", "../card0")
        program(tree, HOOK)
        spec.keep()
        specs.write(record())
        (device,) = json.loads((spec.directory / "k8s.gpu.nvidia.com-claim_u1.json").read_text())["devices"]
        edits = device["containerEdits"]
        assert [one["path"] for one in edits["deviceNodes"]][::3] == ["/dev/nvidia0", "/dev/dri/card0"]
        assert [one["path"] for one in edits["hooks"]] == [HOOK]

    def test_additional_devices_are_there_if_the_node_has_them(
        self, spec: CommonSpec, specs: ClaimSpecs, tree: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        link(tree, "/dev/gdrdrv", "/dev/null")
        wanted = record()
        step = AdditionalDevicesStep("GPU-0", MIG, (*AdditionalDevice,))
        specs.write(replace(wanted, plan=replace(wanted.plan, steps=(step,))))
        (device_of_spec,) = json.loads((spec.directory / "k8s.gpu.nvidia.com-claim_u1.json").read_text())["devices"]
        assert device_of_spec["containerEdits"]["deviceNodes"][-1]["path"] == "/dev/gdrdrv"
        assert [one.message for one in caplog.records if "the node has no" in one.message] == [
            "gds: the node has no /dev/nvidia-fs*",
            "mofed: the node has no /dev/infiniband/uverbs* or /dev/infiniband/rdma_cm",
            "nvswitch: the node has no /dev/nvidia-nvswitch*",
        ]
