# SPDX-License-Identifier: Apache-2.0
"""One run of nvidia-imex.

The process is a child in the foreground. It gets SIGKILL when the thread that started it ends, also if this daemon is
killed (setpriv of util-linux, where it exists; in a pod, the container ends with this daemon in any case). What it
prints is logged, and the last lines tell why it ended.
"""

import contextlib
import logging
import re
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ...errors import ImexError
from . import COMMAND_PORT, PEER_PORT
from .control import plain

log = logging.getLogger(__name__)

_LINES: Final = 40
_TOLD: Final = 3
_LONGEST: Final = 600
_KILL_SECONDS: Final = 2.0
_READ_SECONDS: Final = 1.0
_ERROR: Final = re.compile(r"\[?\b(?:ERROR|FATAL|CRITICAL)\b|\b(?:fail(?:ed)?|error|cannot|could not)\b", re.IGNORECASE)
CAUSES: Final = (
    (
        "NV_ERR_IN_USE",
        "another IMEX daemon uses the GPUs of this node, as a rule the host's service: stop it on the host with"
        " `systemctl disable --now nvidia-imex`",
    ),
    (
        "is not matching with current GPU driver version",
        "nvidia-imex has another version than the loaded NVIDIA driver: install the same version on the node, or reload"
        " the driver",
    ),
    (
        "No matching network interface",
        "no host name of the domain resolves to an address of this pod: see the lines of compute-domain-daemon-… in the"
        " hosts file of the pod",
    ),
    (
        r"address already in use|failed to bind",
        f"port {PEER_PORT} or {COMMAND_PORT} of this pod is in use: another nvidia-imex runs in its network",
    ),
    (
        r"\b(?:SSL|TLS)\b|certificate|credential",
        "the files of the Secret with the domain's certificate cannot be used: see the domain's Certificate",
    ),
)
"""Known errors of nvidia-imex as regular expressions, and what to do."""


def explain(lines: Sequence[str], code: int) -> str:
    """Why nvidia-imex ended, from its last lines and its exit code (negative for a signal)."""
    ended = f"nvidia-imex was ended by signal {-code}" if code < 0 else f"nvidia-imex ended with code {code}"
    errors = [plain(line) for line in lines if _ERROR.search(line)]
    told = "; ".join((errors or [text for line in lines if (text := plain(line))])[-_TOLD:])[-_LONGEST:]
    for pattern, advice in CAUSES:
        if any(re.search(pattern, text, re.IGNORECASE) for text in errors):
            return f"{ended}: {advice} ({told})"
    return f"{ended}: {told or 'it did not say why'}"


class ImexProcess:
    """A running nvidia-imex. `ended` is called on another thread after it has ended. Raises ImexError."""

    def __init__(self, program: str, arguments: Sequence[str], ended: Callable[[], None]) -> None:
        path = shutil.which(program)
        if path is None:
            raise ImexError(
                f"there is no {program} in this container: the NVIDIA driver of the node has no IMEX (package"
                " nvidia-imex), or the container runtime has not added it"
            )
        setpriv = shutil.which("setpriv")
        command = [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), path, *arguments]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise ImexError(f"{program} cannot be run: {error.strerror}") from None
        self._ended = ended
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._read, name="imex-log", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name="imex-end", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it runs. It may hang."""
        return self._process.poll() is None

    def reason(self) -> str:
        """Why it ended. Only after it has ended."""
        self._reader.join(_READ_SECONDS)  # a process that it left behind may have its output open
        return explain(list(self._lines), self._process.returncode)

    def reload(self) -> None:
        """Let it resolve all host names and read the certificates again, and connect to all peers again. It drops this
        within five seconds after the last time. It must have answered before: earlier, the signal would end it.
        """
        self._process.send_signal(signal.SIGUSR1)

    def stop(self, grace: float) -> None:
        """Let it tell its peers, and kill it after `grace` seconds."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            log.warning("nvidia-imex does not end within %g s and is killed", grace)
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                self._process.wait(_KILL_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                text = line.rstrip()
                self._lines.append(text)
                log.info("nvidia-imex: %s", text)

    def _wait(self) -> None:
        self._process.wait()
        self._ended()
