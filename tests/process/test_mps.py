# SPDX-License-Identifier: Apache-2.0
"""The processes of daemons: found by their output or their mounts, and ended whatever they do with signals."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.process.mps import LOG, OUTPUT, end_processes, processes_of
from tests.support.isolated import isolated
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
for number in map(int, sys.argv[1:]):
    signal.signal(number, signal.SIG_IGN)
signal.pause()
"""
"""A daemon with a server, which has a session of its own. Both ignore the signals of the arguments."""

WITH_MOUNTS = """
import os, subprocess, sys
from pathlib import Path
from dra_driver.process.mps import end_processes, processes_of

mps = Path(sys.argv[1])
server, other = mps / "s0123456789", mps / "sabcdef0123"
for folder in (server, other):
    (folder / "log").mkdir(parents=True)
script = '''
mount -t tmpfs tmpfs /run
mkdir /run/log
mount --bind "$1/log" /run/log
sleep 1000 >/dev/null 2>&1 &
echo ready
exec sleep 1000 >/dev/null 2>&1
'''
command = ["unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh", str(server)]
daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
assert daemon.stdout.readline() == "ready\\n"
assert len(processes_of(mps)) == 2 and processes_of(mps) == processes_of(server), processes_of(mps)
assert daemon.pid in processes_of(mps)
assert processes_of(other) == []
end_processes(other, 5.0)
assert daemon.poll() is None
end_processes(server, 5.0)
assert processes_of(mps) == []
assert daemon.wait(60) == -15
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    server = tmp_path / "s0123456789"
    (server / LOG).mkdir(parents=True)
    yield server
    end_processes(tmp_path, 0.1)


def start(folder: Path, *ignored: int) -> "subprocess.Popen[bytes]":
    """Start a daemon, and wait until its server runs."""
    with (folder / LOG / OUTPUT).open("wb") as output:
        command = [sys.executable, "-c", DAEMON, *map(str, ignored)]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    wait_for(lambda: len(processes_of(folder)) == 2, "the server")
    return process


def test_daemon_and_server_are_found_by_their_output(folder: Path) -> None:
    process = start(folder)
    assert process.pid in processes_of(folder)
    assert processes_of(folder) == processes_of(folder.parent)
    process.kill()
    process.wait()
    assert len(processes_of(folder)) == 1
    end_processes(folder, 5.0)
    assert processes_of(folder) == []


@pytest.mark.parametrize("ignored", [(), (15,)], ids=["SIGTERM ends them", "SIGTERM is ignored"])
def test_daemon_and_server_are_ended(folder: Path, ignored: tuple[int, ...]) -> None:
    process = start(folder, *ignored)
    end_processes(folder, 0.5)
    assert processes_of(folder) == []
    process.wait(60)


def test_stopped_processes_are_ended(folder: Path) -> None:
    process = start(folder)
    for pid in processes_of(folder):
        os.kill(pid, 19)
    end_processes(folder, 0.5)
    assert processes_of(folder) == []
    process.wait(60)


def test_daemons_of_other_folders_are_not_found(folder: Path) -> None:
    other = folder.with_name("s012345678")
    (other / LOG).mkdir(parents=True)
    process = start(folder)
    assert processes_of(other) == []
    end_processes(other, 0.5)
    assert process.poll() is None


def test_folder_that_does_not_exist_has_no_processes(tmp_path: Path) -> None:
    assert processes_of(tmp_path / "missing") == []
    end_processes(tmp_path / "missing", 0.1)


def test_processes_are_found_by_their_mounts(tmp_path: Path) -> None:
    isolated(WITH_MOUNTS, str(tmp_path / "mps"))
