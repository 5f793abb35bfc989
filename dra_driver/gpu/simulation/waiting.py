# SPDX-License-Identifier: Apache-2.0
"""Waiting until a file is written, as NVML waits for events: without looking again and again. See inotify(7)."""

import ctypes
import os
import select
import time
import weakref

_MODIFY, _ATTRIB = 0x2, 0x4
_POLL_SECONDS = 0.1


class FileWatch:
    """Tells that a file was appended to or touched since the last time. Used by one thread.

    A user may have so many watches only; one who can have none looks often instead.
    """

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None)
        self._descriptor = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._poll = select.poll()
        if self._descriptor >= 0:
            weakref.finalize(self, os.close, self._descriptor)
            if libc.inotify_add_watch(self._descriptor, path.encode(), _MODIFY | _ATTRIB) >= 0:
                self._poll.register(self._descriptor, select.POLLIN)
                return
        self._descriptor = -1

    def wait(self, seconds: float) -> None:
        """Return when something was done to the file, and after `seconds` in any case."""
        if self._descriptor < 0:
            time.sleep(min(seconds, _POLL_SECONDS))
        elif self._poll.poll(seconds * 1000):
            os.read(self._descriptor, 1 << 16)
