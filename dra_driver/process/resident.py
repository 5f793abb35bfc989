# SPDX-License-Identifier: Apache-2.0
"""Reduces the resident memory of a process after its start: unmaps pages of program files that only the start used.

The start of a process uses most pages of libpython, OpenSSL and gRPC: the loader relocates them, initializers run, and
the kernel maps 16 pages for each page that is used. After the start, the process needs about half of them. The others
would be resident (`RssFile`) until the process ends. Unmapped pages remain in the page cache of the kernel, so a page
that is needed again is mapped without reading the file. The private memory of the process (`RssAnon`) does not change.
"""

import ctypes
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_MADV_DONTNEED: Final = 4
"""madvise(2): unmap pages. A page of a private file mapping is mapped from the file again when it is used."""

_READ_ONLY_FILE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ \S+ +/(?!dev/)(?!.*nvidia)")
"""The first line of a read-only mapping of a file in smaps, with its start and end in hexadecimal. NVIDIA's libraries
are excluded: another thread may unload them at the same time, and then other memory at these addresses would lose its
content.
"""

_LOOK_SECONDS: Final = 1.0


def release_after_start(unready: Callable[[], str | None]) -> None:
    """Call `release_program_pages` once when `unready` returns None. It is called on a thread of its own."""

    def wait() -> None:
        while unready() is not None:
            time.sleep(_LOOK_SECONDS)
        release_program_pages()

    threading.Thread(target=wait, name="after-start", daemon=True).start()


def release_program_pages() -> None:
    """Unmap the pages of program files that this process has not changed. Does nothing without /proc."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        with Path("/proc/self/smaps").open(encoding="utf-8", errors="surrogateescape") as lines:
            for start, end in _unchanged(lines):
                madvise(start, end - start, _MADV_DONTNEED)
    except OSError as error:
        log.debug("cannot read the mappings of this process: %s", error)
        return
    log.debug("unmapped the pages of program files")


def _unchanged(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The start and end of read-only mappings of files without private pages. Relocation makes pages private."""
    mapping: re.Match[str] | None = None
    for line in smaps:
        name, _, value = line.partition(":")
        if " " in name:
            mapping = _READ_ONLY_FILE.match(line)
        elif mapping is not None and name == "Anonymous" and value.split()[0] == "0":
            yield int(mapping[1], 16), int(mapping[2], 16)
