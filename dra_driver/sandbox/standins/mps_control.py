# SPDX-License-Identifier: Apache-2.0
"""The simulated nvidia-cuda-mps-control. Without -f, it sends commands to the daemon of a pipe directory.

With -f, it is that daemon (see `mps_daemon`).
"""

import _socket
import sys
import time

from .mps_common import BUFFER, CONTROL, PIPE, SEPARATOR, MpsRefusedError, WorkingFolder, fault


def _strike(command: str) -> None:
    """Hang or fail if there is such a fault for this command."""
    while fault(f"hang-{command}") is not None:
        time.sleep(0.05)
    text = fault(f"fail-{command}")
    if text is not None:
        raise MpsRefusedError(text)


def _ask(protocol: int, words: list[str]) -> str:
    """Send a command to the daemon of the pipe directory, and return its output."""
    _strike(words[0])
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        try:
            with WorkingFolder(PIPE):
                connection.connect(CONTROL)
        except OSError:
            raise MpsRefusedError("Cannot find MPS control daemon process") from None
        connection.send(SEPARATOR.join([str(protocol), *words]).encode())
        answer = connection.recv(BUFFER).decode() or "1the daemon ended"
    finally:
        connection.close()
    if answer[0] != "0":
        raise MpsRefusedError(answer[1:])
    return answer[1:]


def _run(arguments: list[str]) -> None:
    if not arguments:
        for line in sys.stdin:
            if words := line.split():
                print(_ask(2, words), flush=True)  # noqa: T201
        return
    if arguments[:1] == ["-q"]:
        arguments = ["quit"]
    if not arguments[0].startswith("-"):
        print(_ask(3, arguments), flush=True)  # noqa: T201
        return
    from .mps_daemon import serve

    serve(arguments)


def main() -> None:
    """Entry point."""
    try:
        _run(sys.argv[1:])
    except MpsRefusedError as error:
        print(error, flush=True)  # noqa: T201
        sys.exit(1)
