# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gpus --watch` against an API server: in a pipe, and on a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from tests.dryrun.conftest import gpu, slice_of
from tests.support.apiserver import SLICES, api_server, connect

pytestmark = pytest.mark.cluster

PROGRAM = [sys.executable, "-m", "dra_driver.dryrun.main", "gpus", "--watch", "--kubeconfig"]

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
"""What a program writes to get a screen of its own, and to give the old one back (DEC private mode 1049)."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, ApiClient]]:
    """A cluster with one GPU on node-1."""
    with api_server(tmp_path) as config, connect(config) as client:
        client.create(SLICES, slice_of("node-1", gpu("gpu-0")))
        yield config, client


def test_a_pipe_gets_the_first_state_and_a_line_for_each_change(cluster: tuple[Path, ApiClient]) -> None:
    config, client = cluster
    with subprocess.Popen([*PROGRAM, str(config)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            assert next(lines).startswith("1 GPU of 1 node: 1 free")
            next(line for line in lines if line.startswith("  gpu-0"))
            client.create(SLICES, slice_of("node-2", gpu("gpu-7")))
            change = next(line for line in lines if "node-2" in line)
        finally:
            process.terminate()
    assert change.rstrip().endswith("Z node-2/gpu-7: is published (NVIDIA H100 80GB HBM3)")


def test_a_terminal_gets_the_whole_screen_until_q_is_pressed(cluster: tuple[Path, ApiClient]) -> None:
    config, _ = cluster
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    with subprocess.Popen([*PROGRAM, str(config)], stdin=theirs, stdout=theirs) as process:
        written = b""
        try:
            while b"node-1/gpu-0" not in written:
                written += os.read(ours, 65536)
            os.write(ours, b"q")
            while LEFT not in written:
                written += os.read(ours, 65536)
            code = process.wait()
        finally:
            process.kill()
    assert code == 0
    assert written.index(ENTERED) < written.index(b"node-1/gpu-0")
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
