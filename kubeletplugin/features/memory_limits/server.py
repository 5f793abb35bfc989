# SPDX-License-Identifier: Apache-2.0
"""The socket on which the plugin answers the hook program (hook.c describes request and answer).

The socket always has the same path, because containers are started with the CDI spec of an earlier plugin. A new plugin
takes the path over in one step. An old one continues with the requests that it has, and leaves the path alone when it
ends: the hook program tries again when no process listens.
"""

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dra_driver.process.containment import Count, contained
from dra_driver.process.files import make_folder, put_file
from dra_driver.process.worker import Worker
from kubeletplugin.containers.cdi.spec import is_device_name

from ...errors import LaterError, LimitError, SocketError
from ...kubelet.sockets import LONGEST_PATH, is_served

log = logging.getLogger(__name__)

_VERSION: Final = "1"
_CLAIM: Final = re.compile(r"[A-Za-z0-9-]{1,63}")
_MOST_BYTES: Final = 1 << 13
_MOST_ANSWER: Final = 4000
_MOST_REQUESTS: Final = 64
_READ_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 2.0  # longer than a look

Apply = Callable[[str, str, str], None]
"""Sets the limit of a container: UID of the claim, device, cgroup. Raises LimitError."""


class HookServer:
    """Answers hook programs at `path` by calling `apply`, each on a thread of its own. `count` counts unexpected
    errors.
    """

    def __init__(self, path: Path, apply: Apply, count: Count = lambda _work: None) -> None:
        self.path = path
        self._apply = apply
        self._count = count
        self._places = threading.BoundedSemaphore(_MOST_REQUESTS)
        self._listener: socket.socket | None = None
        self._inode: int | None = None
        self._keeper = Worker("keep hook socket", self._keep, interval=_LOOK_SECONDS, at_end=self._close)

    def start(self) -> None:
        """Listen. Raises SocketError."""
        if len(os.fsencode(self.path)) > LONGEST_PATH:
            raise SocketError(f"socket path {self.path} is longer than {LONGEST_PATH} bytes: choose a shorter folder")
        self._listen()
        self._keeper.start()

    def stop(self) -> None:
        """Accept no more requests. Running ones are answered."""
        self._keeper.stop(_STOP_SECONDS)

    def _listen(self) -> None:
        temporary = self.path.with_name(f".{os.urandom(3).hex()}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            make_folder(self.path.parent)
            listener.bind(os.fsencode(temporary))
            temporary.chmod(0o600)
            listener.listen(_MOST_REQUESTS)
            self._inode = _inode(temporary)
            put_file(temporary, self.path)
        except OSError as error:
            listener.close()
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise SocketError(f"cannot listen on {self.path}: {error}") from None
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="limits", daemon=True).start()

    def _keep(self) -> None:
        """Listen again if the socket was removed. The socket of another plugin is left alone."""
        if _inode(self.path) != self._inode and not is_served(self.path):
            log.warning("the socket for limits of memory was removed, and is made again")
            self._close()
            with contextlib.suppress(SocketError):
                self._listen()

    def _close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept` on the other thread
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._keeper.is_stopped or listener is not self._listener or listener.fileno() < 0:
                    return
                log.warning("a request for a limit of memory cannot be accepted: %s", error)
                self._keeper.pause(_LOOK_SECONDS)
                continue
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="limits", daemon=True).start()
            else:
                with connection:
                    _answer(connection, "later too many containers start at the same time")

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):  # OSError: the hook program is gone
                connection.settimeout(_READ_SECONDS)
                line = _line(connection)
                if line:  # an empty one comes from a plugin that looks whether this one listens
                    _answer(connection, self._result(line))
        finally:
            self._places.release()

    def _result(self, line: bytes) -> str:
        fields = os.fsdecode(line).split(" ", 3)
        if len(fields) != 4 or fields[0] != _VERSION:
            return "error the plugin does not understand the request of the hook program"
        _, claim, device, cgroup = fields
        if not _CLAIM.fullmatch(claim) or not is_device_name(device):
            return f"error {claim!r} and {device!r} are not the UID of a claim and the name of a device"
        unexpected: list[Exception] = []
        with contained("limit memory", claim, self._count, unexpected.append, expected=(LimitError,)):
            try:
                self._apply(claim, device, cgroup)
            except LaterError as error:
                return f"later {error}"
            except LimitError as error:
                log.warning("a container is refused: %s", error, extra={"claim": claim, "device": device})
                return f"error {error}"
        return f"error internal error: {unexpected[0]!r}" if unexpected else "ok"


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def _line(connection: socket.socket) -> bytes:
    """The request without its end of line, or what there is of it."""
    found = b""
    while b"\n" not in found and len(found) < _MOST_BYTES and (more := connection.recv(_MOST_BYTES)):
        found += more
    return found.partition(b"\n")[0] if b"\n" in found else found and b"?"


def _answer(connection: socket.socket, text: str) -> None:
    line = " ".join(text.split()).encode(errors="replace")[:_MOST_ANSWER]
    with contextlib.suppress(OSError):
        connection.sendall(line + b"\n")
