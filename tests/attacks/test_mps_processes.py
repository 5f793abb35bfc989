# SPDX-License-Identifier: Apache-2.0
"""Containers without a claim imitate the processes of MPS daemons."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.names import DRIVER_NAME
from dra_driver.process.mps import processes_of
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.shares import MpsShare, ShareFiles, ShareName
from tests.support.isolated import isolated
from tests.support.mps import MpsProcess, connect
from tests.support.nodes import make_node

from .attacker import attacking

SERVER = "s0123456789"

IMITATE = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mps = sys.argv[3]
environment = {"DRA_MPS_DAEMON": f"{mps}/s0123456789", "CUDA_MPS_PIPE_DIRECTORY": f"{mps}/s0123456789/daemon"}
program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
while True:
    child = os.posix_spawn(sys.executable, ["nvidia-cuda-mps-server", "-c", program], environment)
    attempted()
    done = 0
    for _ in range(200):  # it lives two seconds, unless it is killed: then another one takes its place at once
        if done := os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.01)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""

NESTED = """
import os, subprocess, sys, time
from pathlib import Path
from dra_driver.process.mps import end_processes, processes_of

mps, script = Path(sys.argv[1]), sys.argv[2]
server = mps / "s0123456789"
for name in ("log", "pipe/log", "pipe/s0123456789/log", "daemon"):
    (server / name).mkdir(parents=True)
(server / "log/output").touch()
attacker = subprocess.Popen(["unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh", str(server)],
                            stdout=subprocess.PIPE, text=True)
assert attacker.stdout.readline() == "ready\\n"
assert processes_of(mps) == processes_of(server) == []
end_processes(mps, 0.2)
assert attacker.poll() is None
attacker.kill()
"""
"""A program that looks for the processes of daemons while a container imitates one. The container is root of the same
user namespace, and may even mount: so only what containers do not have can tell its processes from those of daemons.
"""

CONTAINERS = {
    "has the path of the output in its own files": """
mount -t tmpfs tmpfs "$1"
mkdir "$1/log"
echo ready
exec sleep 1000 >"$1/log/output" 2>&1
""",
    "has a mount with the path of the logs": """
mount -t tmpfs tmpfs /run
mkdir -p /run/nvidia-mps/s0123456789/log
mount -t tmpfs tmpfs /run/nvidia-mps/s0123456789/log
echo ready
exec sleep 1000
""",
    "mounts a folder of its pipe directory that is named like the logs": """
mount -t tmpfs tmpfs /run
mkdir -p /run/nvidia-mps/s0123456789/log
mount --bind "$1/pipe/s0123456789/log" /run/nvidia-mps/s0123456789/log
mount --bind "$1/pipe/log" /run/nvidia-mps/s0123456789/log
echo ready
exec sleep 1000
""",
    "has very many mounts": """
mount -t tmpfs tmpfs /run
for number in $(seq 300); do mkdir /run/$number; mount --bind /run/$number /run/$number; done
echo ready
exec sleep 1000
""",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        yield Path(name)


def test_imitated_processes_stop_no_dra_mps(folder: Path) -> None:
    state, own = folder / "plugins" / DRIVER_NAME, folder / "own"
    state.mkdir(parents=True)
    own.mkdir()
    node = make_node(folder / "node", "h100x8-mixed")
    files, process = ShareFiles(state / "mps"), MpsProcess(state, node.node, folder / "mps.log")
    uuid = node.nvml.uuid(node.nvml.device_by_index(0))
    text = IMITATE.replace("sys.argv[3]", repr(str(files.folder)))
    with attacking(text, own, folder, folder) as attack:
        process.start()
        try:
            files.put(ShareName(SERVER, uuid, "a"), MpsShare(2, (uuid,), 50, shared_memory=False))
            SupervisorClient(files.folder).settle(SERVER)
            daemon = int((files.folder / SERVER / "pipe/nvidia-cuda-mps-control.pid").read_text())
            server = connect(files.folder / SERVER / "pipe")["server"]
            assert set(processes_of(files.folder)) == {daemon, server}
            for name in files.names(SERVER):
                files.remove(name)
            SupervisorClient(files.folder).settle(SERVER)
            assert processes_of(files.folder) == []
            attack.require(attack.attempts + 2)
            assert attack.attempts < 100, "its processes were killed"
        finally:
            process.end()


@pytest.mark.parametrize("container", CONTAINERS)
def test_no_process_of_a_container_is_taken_for_one_of_a_daemon(folder: Path, container: str) -> None:
    isolated(NESTED, str(folder / "mps"), CONTAINERS[container])
