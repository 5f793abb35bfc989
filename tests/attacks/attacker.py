# SPDX-License-Identifier: Apache-2.0
"""A hostile container: a process that is root in a user namespace of its own, and can write in one folder only.

It has mount and process namespaces of its own, in which everything but this folder is read-only. It runs a Python
program that attacks in a loop, and counts its attempts. So a test can tell an attack that failed from one that was not
tried.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.isolated import require_namespaces
from tests.support.waiting import wait_for

_UNSHARE: Final = (
    *("unshare", "--user", "--map-root-user", "--mount", "--propagation=private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)

_ENTER: Final = """
mount --bind "$2" "$2"
mount --bind "$1" "$1"
mount -o remount,bind,ro "$2"
cd "$1"
exec "$3" -c "$4" "$5" "$6"
"""
"""A script for sh -eu: the folder that can be written, the one around it that cannot, Python, and the program with two
arguments.
"""

_PRELUDE: Final = """
import ctypes, json, os, socket, sys, time

count, victim = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
attempts = 0

def attempted():
    global attempts
    attempts += 1
    os.pwrite(count, attempts.to_bytes(8, "little"), 0)

def in_child(work):
    if os.fork() == 0:
        global count
        count = os.open("/dev/null", os.O_WRONLY)  # only the attempts of the first process count
        work()

def exchange(first, second):
    libc.renameat2(-100, first.encode(), -100, second.encode(), 2)  # AT_FDCWD, RENAME_EXCHANGE

def quit():
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(1.0)
            connection.connect("control")
            connection.send(json.dumps({"protocol": 2, "words": ["quit"]}).encode())
            connection.recv(4096)
            return True
    except OSError:
        return False

try:
    open(os.path.join(victim, "written"), "w")
except OSError:
    pass
else:
    sys.exit("this is no attack: the attacker can write in the victim's folder")
"""


class Attack:
    """An attack that goes on."""

    def __init__(self, process: "subprocess.Popen[bytes]", count: int, log: Path) -> None:
        self._process = process
        self._count = count
        self._log = log

    @property
    def attempts(self) -> int:
        """How often it was tried."""
        assert self._process.poll() is None, self._log.read_text()
        return int.from_bytes(os.pread(self._count, 8, 0), "little")

    def require(self, attempts: int, seconds: float = 60.0) -> None:
        """Wait until it was tried so often. Fails if it ends before, or after `seconds`."""
        wait_for(lambda: self.attempts >= attempts, f"{attempts} attempts", seconds)


@contextlib.contextmanager
def attacking(text: str, folder: Path, around: Path, victim: Path) -> Iterator[Attack]:
    """Run a program that can write in `folder` only, and not in `around`, a folder above it. It knows `victim`, whose
    files it is to change. The program calls `attempted` for each attempt. It ends with the context.
    """
    require_namespaces()
    log = around / f"attack-{os.urandom(4).hex()}.log"
    with (around / f"{log.name}.count").open("wb+") as count, log.open("wb") as output:
        script = ["sh", "-euc", _ENTER, "sh", str(folder), str(around), sys.executable, _PRELUDE + text]
        process = subprocess.Popen(
            [*_UNSHARE, *script, str(count.fileno()), str(victim)],
            pass_fds=(count.fileno(),),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        attack = Attack(process, count.fileno(), log)
        try:
            attack.require(1)
            yield attack
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
