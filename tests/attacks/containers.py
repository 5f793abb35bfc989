# SPDX-License-Identifier: Apache-2.0
"""Attackers as processes in containers: root in a user namespace of their own, with one writable folder."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child")
_MOUNTS = """
mount --bind "$1" "$1"
for place in / /dev/shm /tmp; do mount -o remount,bind,ro "$place" 2> /dev/null || true; done
cd "$1"
shift
exec "$@"
"""


@contextmanager
def container(folder: Path, script: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A container that runs a Python script in `folder` until the end of the context. Nothing else is writable for it.

    The script prints a line for each thing that it has done, and reads standard input to be told to go on.
    """
    command = [*_NAMESPACE, "sh", "-euc", _MOUNTS, "sh", str(folder), sys.executable, "-uc", script, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=sys.stderr, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]") -> str:
    """The next line of a container. Fails the test if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the container has ended"
    return line.strip()


def tell(process: "subprocess.Popen[str]", text: str = "") -> None:
    """Send a container a line."""
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()
