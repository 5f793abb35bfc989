# SPDX-License-Identifier: Apache-2.0
"""The cache of the dynamic loader (/etc/ld.so.cache), which tells where libraries are installed.

The format is that of glibc (sysdeps/generic/dl-cache.h): a header, entries of 24 bytes, and strings. Up to glibc 2.31,
an older header with entries of 12 bytes may come first. Only 64-bit libraries of x86-64 and AArch64 are read.
"""

import posixpath
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

CACHE: Final = "etc/ld.so.cache"
"""The path of the cache below a root folder."""

_OLD_MAGIC: Final = b"ld.so-1.7.0"
_OLD_HEADER, _OLD_ENTRY, _OLD_COUNT = 16, 12, 12
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER: Final = 48
_ENTRY: Final = struct.Struct("<iIIIQ")  # flags, name, path, version of the kernel, capabilities of the processor
_KIND: Final = 0xFF00
_KINDS: Final = (0x0300, 0x0A00)  # x86-64, AArch64
_MOST_BYTES: Final = 16 << 20


def library_folders(file: Path, is_wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """The folders of the libraries whose name `is_wanted`, in the order of the cache. Empty if there is no cache, or
    its format is not known.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES)
    except OSError:
        return ()
    try:
        paths = [path for path in _paths(data) if is_wanted(posixpath.basename(path))]
    except (struct.error, ValueError):  # cut off, or not of this format
        return ()
    return tuple(dict.fromkeys(posixpath.dirname(path) for path in paths if path.startswith("/")))


def _paths(data: bytes) -> Iterator[str]:
    start = 0
    if data.startswith(_OLD_MAGIC):
        (count,) = struct.unpack_from("<I", data, _OLD_COUNT)
        end = _OLD_HEADER + _OLD_ENTRY * count
        start = -(-end // 8) * 8
    if not data.startswith(_MAGIC, start):
        return
    (count,) = struct.unpack_from("<I", data, start + len(_MAGIC))
    for index in range(count):
        flags, _, path, _, _ = _ENTRY.unpack_from(data, start + _HEADER + _ENTRY.size * index)
        if flags & _KIND in _KINDS:
            yield data[start + path : data.index(0, start + path)].decode()
