# SPDX-License-Identifier: Apache-2.0
"""What the node's own spec depends on: every such change shows, and no other."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import (
    Fingerprint,
    Root,
    SpecDirectory,
    base_spec,
    common_edits,
    find_hook_tool,
    fingerprint,
)
from tests.support.nodes import driver_root_of

from .trees import MAJORS, VERSION, Terminal, file, kernel, libraries, link, program

FOLDER = "/usr/lib/x86_64-linux-gnu"
FIRMWARE = f"/lib/firmware/nvidia/{VERSION}"
WITHOUT_UVM = {name: major for name, major in MAJORS.items() if name != "nvidia-uvm"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A node with something of everything, last changed long ago, as times of change are no finer than some ms."""
    libraries(tmp_path, FOLDER)
    file(tmp_path, f"{FOLDER}/vdpau/libvdpau_nvidia.so.{VERSION}")
    link(tmp_path, "/lib", "usr/lib")
    link(tmp_path, "/bin", "/usr/bin")
    link(tmp_path, "/var/run", "/run")
    kernel(tmp_path, WITHOUT_UVM)
    program(tmp_path, "/usr/bin/nvidia-smi")
    program(tmp_path, "/usr/lib/nvidia/nvidia-debugdump")
    link(tmp_path, "/usr/bin/nvidia-debugdump", "/etc/alternatives/debugdump")
    link(tmp_path, "/etc/alternatives/debugdump", "/usr/lib/nvidia/nvidia-debugdump")
    file(tmp_path, "/etc/vulkan/icd.d/nvidia_icd.json")
    file(tmp_path, f"{FIRMWARE}/gsp_ga10x.bin")
    file(tmp_path, "/run/nvidia-persistenced/socket")
    file(tmp_path, "/tmp/nvidia-mps/control")
    file(tmp_path, "/dev/nvidiactl")
    program(tmp_path, "/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    for folder, _, _ in os.walk(tmp_path):
        os.utime(folder, (1, 1))
    return tmp_path


def take(tree: Path) -> Fingerprint:
    root = driver_root_of(tree, "/host")
    return fingerprint(root, VERSION, [root.files], machine="x86_64", kernel_release="6.1.0")


def spec(tree: Path) -> object:
    """What the spec would say."""
    root = driver_root_of(tree, "/host")
    tool = find_hook_tool(root.files)
    return common_edits(root, VERSION, tool, machine="x86_64", kernel_release="6.1.0")


def remove(tree: Path, path: str) -> None:
    (tree / path.lstrip("/")).unlink()


def relink(tree: Path, path: str, text: str) -> None:
    remove(tree, path)
    link(tree, path, text)


CHANGES: dict[str, Callable[[Path], object]] = {
    "nvidia-uvm is loaded": lambda tree: kernel(tree, MAJORS),
    "a control node is made": lambda tree: file(tree, "/dev/nvidia-uvm"),
    "a control node goes": lambda tree: remove(tree, "/dev/nvidiactl"),
    "nvidia-persistenced stops": lambda tree: remove(tree, "/run/nvidia-persistenced/socket"),
    "nvidia-persistenced is removed": lambda tree: shutil.rmtree(tree / "run/nvidia-persistenced"),
    "the Fabric Manager starts": lambda tree: file(tree, "/run/nvidia-fabricmanager/socket"),
    "MPS stops": lambda tree: shutil.rmtree(tree / "tmp/nvidia-mps"),
    "a library is added": lambda tree: file(tree, f"{FOLDER}/libnvcuvid.so.{VERSION}"),
    "a library goes": lambda tree: remove(tree, f"{FOLDER}/libcuda.so.{VERSION}"),
    "an inner library goes": lambda tree: remove(tree, f"{FOLDER}/vdpau/libvdpau_nvidia.so.{VERSION}"),
    "a folder of libraries comes": lambda tree: file(tree, f"/usr/lib64/libnvcuvid.so.{VERSION}"),
    "a link of a library is changed": lambda tree: relink(tree, f"{FOLDER}/libcuda.so", f"libcuda.so.{VERSION}"),
    "a program is added": lambda tree: program(tree, "/usr/sbin/nvidia-imex"),
    "a program goes": lambda tree: remove(tree, "/usr/bin/nvidia-smi"),
    "a program may not be run": lambda tree: (tree / "usr/bin/nvidia-smi").chmod(0o644),
    "a link to a program leads nowhere": lambda tree: remove(tree, "/etc/alternatives/debugdump"),
    "a configuration file is added": lambda tree: file(tree, "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    "a configuration file goes": lambda tree: remove(tree, "/etc/vulkan/icd.d/nvidia_icd.json"),
    "firmware is added": lambda tree: file(tree, f"{FIRMWARE}/gsp_tu10x.bin"),
    "firmware goes": lambda tree: shutil.rmtree(tree / "usr/lib/firmware"),
    "firmware of the kernel's own folder comes": lambda tree: file(
        tree, f"/lib/firmware/updates/6.1.0/nvidia/{VERSION}/gsp_ga10x.bin"
    ),
    "the hook program goes": lambda tree: remove(tree, "/usr/local/nvidia/toolkit/nvidia-cdi-hook"),
    "another hook program comes": lambda tree: program(tree, "/usr/bin/nvidia-cdi-hook"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_of_the_spec_changes_the_fingerprint(tree: Path, change: Callable[[Path], object]) -> None:
    before, said = take(tree), spec(tree)
    change(tree)
    assert spec(tree) != said, "this is a change that matters"
    assert take(tree) != before


def test_removed_mount_source_changes_the_fingerprint(tree: Path) -> None:
    root = driver_root_of(tree, "/")
    for mount in common_edits(root, VERSION, None, machine="x86_64", kernel_release="6.1.0").edits.mounts:
        before = take(tree)
        away = root.files.here(mount.host_path)
        kept = away.rename(away.with_name("away"))
        assert take(tree) != before, mount.host_path
        kept.rename(away)
        os.utime(away.parent, (1, 1))
        assert take(tree) == before, "back again"


OTHER_CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda tree: None,
    "another driver is loaded": lambda tree: kernel(tree, {**WITHOUT_UVM, "usbmon": 240}),
    "a GPU's node is made": lambda tree: file(tree, "/dev/nvidia0"),
    "other programs are installed": lambda tree: program(tree, "/usr/bin/something"),
    "other daemons start": lambda tree: file(tree, "/run/something/socket"),
    "a daemon writes its process id": lambda tree: file(tree, "/run/nvidia-persistenced/nvidia-persistenced.pid"),
    "a daemon starts again": lambda tree: file(tree, "/run/nvidia-persistenced/socket", "another"),
    "MPS makes its pipes": lambda tree: file(tree, "/tmp/nvidia-mps/log"),
    "other configuration is written": lambda tree: file(tree, "/etc/vulkan/icd.d/intel_icd.json"),
    "a configuration file is changed": lambda tree: file(tree, "/etc/vulkan/icd.d/nvidia_icd.json", "{}"),
    "configuration for nobody's container comes": lambda tree: file(tree, "/etc/nvidia/nothing.conf"),
    "firmware of another driver comes": lambda tree: file(tree, "/lib/firmware/nvidia/570.00.01/gsp_ga10x.bin"),
    "the spec is written": lambda tree: SpecDirectory(tree / "run/cdi", "k8s.gpu.nvidia.com/driver").write(
        base_spec(common_edits(driver_root_of(tree), VERSION, None).edits)
    ),
}


@pytest.mark.parametrize("change", OTHER_CHANGES.values(), ids=OTHER_CHANGES)
def test_other_changes_do_not(tree: Path, change: Callable[[Path], object]) -> None:
    before, said = take(tree), spec(tree)
    change(tree)
    assert spec(tree) == said, "this is a change that does not matter"
    assert take(tree) == before


def test_mode_of_a_control_node_changes_the_fingerprint(tree: Path, terminal: Terminal) -> None:
    relink(tree, "/dev/nvidiactl", terminal.path)
    before = take(tree)
    Path(terminal.path).chmod(0o666)
    assert take(tree) != before


def test_another_driver_version_another_fingerprint(tree: Path) -> None:
    root = driver_root_of(tree)
    assert fingerprint(root, VERSION) != fingerprint(root, "570.00.01")


def test_the_folder_that_an_administrator_set_for_firmware_counts(tree: Path) -> None:
    file(tree, "/sys/module/firmware_class/parameters/path", "/opt/firmware\n")
    before = take(tree)
    file(tree, f"/opt/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    assert take(tree) != before


def test_hook_programs_count_only_where_they_are_searched_for(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = driver_root_of(tree, "/run/nvidia/driver")
    host = tmp_path_factory.mktemp("host")
    given, searched = fingerprint(root, VERSION), fingerprint(root, VERSION, [Root(host)])
    program(host, "/usr/local/nvidia/toolkit/nvidia-cdi-hook")
    assert fingerprint(root, VERSION) == given
    assert fingerprint(root, VERSION, [Root(host)]) != searched


def test_a_node_without_anything_has_one_too(tmp_path: Path) -> None:
    root = driver_root_of(tmp_path)
    assert fingerprint(root, VERSION, [root.files]) == fingerprint(root, VERSION, [root.files])
