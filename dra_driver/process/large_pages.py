# SPDX-License-Identifier: Apache-2.0
"""Large pages for the memory of this process.

The objects that a claim needs are spread over all memory of the interpreter. When a claim comes minutes after the last
one, the processor's cache of page addresses has none of them, and reading page tables takes long, most of all in a
virtual machine. A large page needs one entry of this cache instead of 512.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SIZE: Final = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_MAPS: Final = Path("/proc/self/maps")
_COLLAPSE: Final = 25  # MADV_COLLAPSE, since Linux 6.1: see madvise(2)
_IN_USE: Final = 0.75


def use_large_pages(size_file: Path = _SIZE) -> int:
    """Move memory of this process to large pages, and return their number. 0 if the kernel cannot do that.

    A large page whose memory is used to less than three quarters is not made, so that the process hardly grows.
    """
    import ctypes  # a process that uses NVML needs it anyway

    try:
        size, maps = int(size_file.read_text()), _MAPS.read_text()
    except (OSError, ValueError):  # a kernel without transparent huge pages
        return 0
    library = ctypes.CDLL(None)
    in_memory = ctypes.create_string_buffer(size // mmap.PAGESIZE)
    made = 0
    for start in _places(maps, size):
        place, length = ctypes.c_void_p(start), ctypes.c_size_t(size)
        if library.mincore(place, length, in_memory) != 0:
            continue  # it was unmapped meanwhile
        pages = sum(state & 1 for state in in_memory.raw)
        if pages >= len(in_memory) * _IN_USE and library.madvise(place, length, _COLLAPSE) == 0:
            made += 1
    return made


def _places(maps: str, size: int) -> Iterator[int]:
    """The addresses at which private memory that belongs to no file can have a page of this size."""
    for line in maps.splitlines():
        addresses, access, _offset, _device, _inode, *name = line.split()
        if access == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            first = -(-start // size) * size
            yield from range(first, end - size + 1, size)
