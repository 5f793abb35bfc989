# SPDX-License-Identifier: Apache-2.0
"""The parts of binding: which module a device needs, who has a node open, programs of the node, the marks."""

import fcntl
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.functions import PciFunction
from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.passthrough import VfioMark, VfioMarks
from dra_driver.gpu.session import LettingGoError, Session
from dra_driver.kube.resource.codec import DecodeError
from kubeletplugin.claims.model import ClaimRef, Device, Plan, Record, State
from kubeletplugin.claims.records import decode, encode
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError, StuckError, WriteError
from kubeletplugin.host.modules import VfioModules, best_module
from kubeletplugin.host.openers import Opener, names_of, openers
from kubeletplugin.host.programs import HostPrograms
from kubeletplugin.kinds.mig.mode import MigModeStep
from kubeletplugin.kinds.vfio.device import VfioKind
from kubeletplugin.kinds.vfio.step import vfio_step
from kubeletplugin.kinds.vfio.writes import SysfsWrites
from tests.kubeletplugin.inside import QUICK, ApiServer, CallThread, Plugin
from tests.support.nodes import make_node
from tests.support.waiting import wait_for

ANY = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci"
GRACE = "alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci"
NIC = "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci"
LOADED_BY_OTHERS = "alias pci:v000010DEd00002342sv*sd*bc03sc02i00* nvidia"
H100, GH200 = (f"v000010DEd0000{device}sv000010DEsd00001839bc03sc02i00" for device in ("2330", "2342"))
MARK = VfioMark(
    "0000:3b:00.0",
    "GPU-1",
    (PciFunction("0000:3b:00.0", "nvidia"), PciFunction("0000:3b:00.1", None, "vfio-pci")),
    persistence=True,
)


@pytest.mark.parametrize(
    ("modalias", "lines", "module"),
    [
        (H100, [ANY, GRACE, NIC], "vfio_pci"),
        (GH200, [ANY, GRACE, NIC], "nvgrace_gpu_vfio_pci"),
        (GH200, [GRACE, ANY], "nvgrace_gpu_vfio_pci"),
        (GH200, [LOADED_BY_OTHERS, NIC], "vfio_pci"),
        (H100, [], "vfio_pci"),
        (H100, ["# comment", "alias", ""], "vfio_pci"),
    ],
)
def test_the_module_with_the_fewest_wildcards_is_chosen(modalias: str, lines: list[str], module: str) -> None:
    assert best_module(modalias, lines) == module


@pytest.mark.parametrize("name", ["vfio-pci", "vfio_pci"])
def test_a_driver_is_found_with_dashes_and_with_underscores(tmp_path: Path, name: str) -> None:
    (tmp_path / "bus/pci/drivers" / name).mkdir(parents=True)
    assert VfioModules(tmp_path, HostPrograms(tmp_path, enter=False)).load("vfio_pci") == name


@pytest.mark.node
@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "modprobe cannot be run: No such file or directory"),
        ("echo no such module; exit 1", "modprobe ended with code 1: no such module"),
        ("exit 0", "has no driver below"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named(tmp_path: Path, script: str | None, message: str) -> None:
    if script is not None:
        (tmp_path / "usr/sbin").mkdir(parents=True)
        program = tmp_path / "usr/sbin/modprobe"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    with pytest.raises(PrepareError, match=message):
        VfioModules(tmp_path, HostPrograms(tmp_path, enter=False)).load("nvgrace_gpu_vfio_pci")


@pytest.mark.node
def test_processes_that_have_a_node_open_are_found_under_any_name(tmp_path: Path) -> None:
    node, other = tmp_path / "nvidia0", tmp_path / "other-name"
    node.touch()
    os.link(node, other)
    assert openers([node]) == ()
    with other.open("rb") as opened, subprocess.Popen(["sleep", "60"], stdin=opened) as child:
        opened.close()
        wait_for(lambda: [one.pid for one in openers([node, tmp_path / "gone"])] == [child.pid], "the opener")
        child.kill()


@pytest.mark.parametrize(("kind", "found"), [("tmpfs", True), ("fuse.sshfs", False), ("nfs4", False)])
def test_files_whose_server_may_not_answer_are_not_looked_at(tmp_path: Path, kind: str, found: bool) -> None:
    """A look at them may block for ever."""
    node, process = tmp_path / "node", tmp_path / "proc/7"
    node.touch()
    for name in ("fd", "fdinfo"):
        (process / name).mkdir(parents=True)
    (process / "fd/3").symlink_to(node)
    (process / "fdinfo/3").write_text("pos:\t0\nflags:\t02\nmnt_id:\t36\nino:\t1\n", encoding="ascii")
    (process / "mountinfo").write_text(f"36 35 98:0 / /mnt rw,noatime master:1 - {kind} x rw\n", encoding="ascii")
    assert [one.pid for one in openers([node], tmp_path / "proc")] == ([7] if found else [])


def test_many_processes_are_not_all_named() -> None:
    text = names_of(Opener(pid, "python") for pid in range(1, 9))
    assert text.startswith("python (PID 1), ")
    assert text.endswith("python (PID 5) and 3 more")


def test_mark_tells_that_the_kernel_does_not_finish(tmp_path: Path) -> None:
    marks = VfioMarks(tmp_path / "vfio")
    marks.stick(MARK.address, "stuck")
    assert not marks.has(MARK.address)
    marks.set(MARK)
    marks.stick(MARK.address, "stuck")
    assert marks.get(MARK.address) == replace(MARK, stuck="stuck")
    marks.stick(MARK.address, "")
    assert marks.get(MARK.address) == MARK


def test_a_record_has_the_gpu_of_a_virtual_machine() -> None:
    driver, device = gpu_driver(), Device("gpu-vfio-0", "machine", VfioKind("GPU-1", "0000:3b:00.0", 17, 3))
    steps = (MigModeStep("GPU-1", False, True), vfio_step(device.name, [device]))
    record = Record(State.PREPARED, "boot", Plan(ClaimRef("team", "claim", "u1"), "node-a", (device,), steps))
    value = json.loads(encode(record))
    assert value["steps"][1] == {"step": "vfio", "device": "gpu-vfio-0"}
    read = decode(driver, encode(record))
    assert read == record
    assert [device.kind.minor for device in read.plan.devices] == [3]
    value["steps"][1]["device"] = "gpu-0"
    with pytest.raises(DecodeError, match="'gpu-0' is not a GPU for a virtual machine"):
        decode(driver, json.dumps(value).encode())


@pytest.mark.parametrize(("boot_id", "given_back"), [("boot-1", True), ("boot-2", False)])
def test_mark_of_an_earlier_boot_is_forgotten_without_a_change_of_its_gpu(
    tmp_path: Path, boot_id: str, given_back: bool
) -> None:
    Plugin(tmp_path, ApiServer(), hardware="h100x8").stop()
    marks = VfioMarks(tmp_path / "vfio")
    marks.set(MARK)
    Plugin(tmp_path, ApiServer(), hardware="h100x8", boot_id=boot_id).stop()
    assert marks.all() == ()
    assert (tmp_path / f"vfio/{MARK.address}.lock").exists() is given_back, "changes of a GPU need its lock"


def test_nvml_is_not_used_while_a_gpu_is_taken(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node", "h100x8")
    marks = VfioMarks(tmp_path / "vfio")
    with marks.letting_go(60):
        pass  # sessions look more often on a node that has given a GPU to a virtual machine
    session = Session(node.node.nvml, node.sys_root, taken=marks)
    generation = session.reach()
    with marks.letting_go(60), marks.letting_go(60):
        assert _is_over(session, generation)
        with pytest.raises(LettingGoError):
            session.pulse()
    assert len(session.inventory().gpus) == 8
    session.close()


def _is_over(session: Session, generation: int) -> bool:
    try:
        with session.use(generation):
            return False
    except NvmlError as error:
        return error.code is Return.UNINITIALIZED


@pytest.mark.node
def test_a_write_waits_for_that_of_a_plugin_that_was_killed(tmp_path: Path) -> None:
    """The process that writes goes on after the plugin was killed, and has the lock for as long as it writes."""
    file, writes = tmp_path / "unbind", SysfsWrites(tmp_path, QUICK.write)
    file.touch()

    def write(address: str, text: str) -> None:
        with writes.of(address) as device:
            device.write(file, text)

    with (tmp_path / "0000:3b:00.0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        call = CallThread(lambda: write("0000:3b:00.0", "text"))
        write("0000:5e:00.0", "of another device")
        assert not call.over
    call.result()
    assert file.read_text().startswith("text\n")


def test_an_earlier_write_that_does_not_end_is_waited_for_once(tmp_path: Path) -> None:
    writes = SysfsWrites(tmp_path, 0.3)
    with (tmp_path / "0000:3b:00.0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(2):
            with pytest.raises(StuckError, match=r"the kernel does not finish an earlier change of 0000:3b:00\.0"):
                writes.require_none("0000:3b:00.0")
    writes.require_none("0000:3b:00.0")


@pytest.mark.node
def test_a_write_that_is_refused_does_not_hinder_the_next(tmp_path: Path) -> None:
    file = tmp_path / "bind"
    file.touch()
    with SysfsWrites(tmp_path, QUICK.write).of("0000:3b:00.0") as device:
        with pytest.raises(WriteError, match=r"refuses to write 'one' to .*missing: .*ENOENT"):
            device.write(tmp_path / "missing", "one")
        device.write(file, "two")
    assert file.read_text() == "two\n"


@pytest.mark.node
def test_a_device_is_locked_from_the_first_to_the_last_write(tmp_path: Path) -> None:
    file, another = tmp_path / "bind", SysfsWrites(tmp_path, 0.1)
    file.touch()
    with SysfsWrites(tmp_path, QUICK.write).of("0000:3b:00.0") as device:
        device.write(file, "one")
        with pytest.raises(StuckError):
            another.require_none("0000:3b:00.0")
        device.write(file, "two")
    another.require_none("0000:3b:00.0")
