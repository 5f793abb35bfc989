# SPDX-License-Identifier: Apache-2.0
"""Our commands on the PATH of shells that tests start, without the imports of each command.

Programs with the names of our commands ask the process of `preloaded` for the process of a command, pass signals on to
it, and end as it ends. Where that process cannot be reached, they become the installed script.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from .preloaded import SANDBOX, orders

_VARIABLE: Final = "TESTS_PRELOADED_ORDERS"
"""Has the file descriptor of the socket of `preloaded`."""
_PROGRAM: Final = """\
#!{python} -IS
import json, os, signal, socket, sys

script = {script!r}
told = os.environ.pop({variable!r}, None)
if told is None:
    os.execv(script, [script, *sys.argv[1:]])
status, writer = os.pipe()
order = {{"command": [*{command!r}, *sys.argv[1:]], "cwd": os.getcwd(), "environment": dict(os.environ), "passed": []}}
with socket.socket(fileno=os.dup(int(told))) as orders:
    socket.send_fds(orders, [json.dumps(order).encode()], [0, 1, 2, writer])
os.close(writer)
pid = int.from_bytes(os.read(status, 4) or sys.exit("no process for " + script), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda one, _: os.kill(pid, one))
for stream in range(3):
    os.close(stream)
code = int.from_bytes(os.read(status, 4), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextlib.contextmanager
def on_path(*names: str) -> Iterator[tuple[Path, Mapping[str, str], int]]:
    """A folder for PATH with these commands, which are installed beside the interpreter; the variables that they need,
    and the file descriptor that the shell has to inherit.
    """
    with tempfile.TemporaryDirectory() as name, orders().dup() as inherited:
        folder, descriptor = Path(name), inherited.fileno()
        for command in names:
            script = str(Path(sys.executable).with_name(command))
            ordered = SANDBOX if command == "dra-sandbox" else (script,)
            text = _PROGRAM.format(python=sys.executable, script=script, command=ordered, variable=_VARIABLE)
            (folder / command).write_text(text, encoding="utf-8")
            (folder / command).chmod(0o755)
        yield folder, {_VARIABLE: str(descriptor)}, descriptor
