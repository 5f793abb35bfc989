# SPDX-License-Identifier: Apache-2.0
"""A daemon with mounts of its own: it sees its folders where containers see them, and the node sees no mount."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.process.programs import run_program
from kubeletplugin.containers.cdi import Root
from kubeletplugin.features.mps.program import NAME, Program
from tests.support.nodes import make_node

pytestmark = pytest.mark.node

LOOK = """#!/bin/sh
echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY"
echo "${LD_LIBRARY_PATH:-none} $(ls "$CUDA_MPS_PIPE_DIRECTORY") $(ls /dev/shm)"
ls -d /inside-of-the-root 2>/dev/null
"""


@pytest.fixture(scope="module", autouse=True)
def _may_mount() -> None:
    tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/run"], check=False)
    if tried.returncode:
        pytest.skip("mounts of its own take root")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra-", dir="/var/tmp") as name:  # /dev/shm is another one inside
        for inner in ("pipe", "daemon", "log"):
            (Path(name) / "s0123456789" / inner).mkdir(parents=True)
        (Path(name) / "s0123456789/daemon/is-the-daemons").touch()
        (Path(name) / "memory").mkdir()
        (Path(name) / "memory/is-the-memory").touch()
        yield Path(name)


def mounts_of_node() -> list[str]:
    """The mounts of the node. Other tests mount simulations of sysfs meanwhile."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - fuse " not in line]


def look(root: Path, folder: Path) -> list[str]:
    """What the program below a root sees."""
    mounts = mounts_of_node()
    program = Program(Root(root), private=True)
    command, environment = program.command(folder / "s0123456789", folder / "memory", [], {})
    done = run_program(command, 30.0, environment, inherit=False)
    assert done.code in (0, 2), done
    assert mounts_of_node() == mounts
    return done.output.splitlines()


def test_a_root_that_is_no_whole_system_lends_its_libraries(folder: Path) -> None:
    root = make_node(folder / "node", "l40sx4").node.driver_root
    (root / "usr/bin" / NAME).write_text(LOOK)
    first, second = look(root, folder)
    assert first == "/run/nvidia-mps/s0123456789/pipe /run/nvidia-mps/s0123456789/log"
    assert second == f"{root}/usr/lib/x86_64-linux-gnu is-the-daemons is-the-memory"


def test_in_a_root_that_is_a_whole_system_the_program_runs_there(folder: Path) -> None:
    root = folder / "system"
    for name in ("usr/bin", "run", "dev/shm", "inside-of-the-root", "lib64"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        for name in ("sh", "ls"):
            _copy_program(shutil.which(name) or "", root)
    else:
        for name in ("sh", "ls"):
            shutil.copy(busybox, root / "usr/bin" / name)
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/bin" / NAME).write_text(LOOK)
    (root / "usr/bin" / NAME).chmod(0o755)
    assert look(root, folder) == [
        "/run/nvidia-mps/s0123456789/pipe /run/nvidia-mps/s0123456789/log",
        "none is-the-daemons is-the-memory",
        "/inside-of-the-root",
    ]


def _copy_program(program: str, root: Path) -> None:
    """A program of this machine, with its libraries."""
    shutil.copy(os.path.realpath(program), root / "usr/bin" / Path(program).name)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for word in listed.split():
        if word.startswith("/"):
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(word), target)
