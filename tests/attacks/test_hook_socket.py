# SPDX-License-Identifier: Apache-2.0
"""A process of another user attacks the socket of the hook program for limits of GPU memory."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from kubeletplugin.features.memory_limits.server import HookServer

CONNECT = """
import socket, sys
refused = 0
for attempt in range(100):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(sys.argv[1])
        except PermissionError:
            refused += 1
print(refused)
"""
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def test_only_root_connects_to_the_hook_socket(short_path: Path) -> None:
    asked: list[str] = []
    server = HookServer(short_path / "limits/hook.sock", lambda *given: asked.extend(given))
    short_path.chmod(0o755)  # the folder of the driver is the boundary, and not one above it
    server.start()
    try:
        assert stat.S_IMODE(server.path.lstat().st_mode) == 0o600
        assert stat.S_IMODE(server.path.parent.stat().st_mode) & 0o007 == 0
        if os.geteuid() == 0:
            command = [*NOBODY, sys.executable, "-c", CONNECT, str(server.path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
            assert done.stdout == "100\n"
    finally:
        server.stop()
    assert not asked
