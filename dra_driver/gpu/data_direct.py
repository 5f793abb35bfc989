# SPDX-License-Identifier: Apache-2.0
"""The NIC that is paired with each GPU by Data Direct, from sysfs.

On boards such as GB300, a ConnectX-8 NIC has a second PCI function, its DMA function, behind the same root port as one
GPU. The NIC itself is in another PCI domain, so that its root complex tells nothing. All functions of a NIC have the
same identifier in the field `V3` of their vital product data. The rules are those of rdma_topo in rdma-core
(kernel-boot): the DMA function, the GPU and no other GPU are below one root port, and the NIC is the function with the
lowest address among those with the identifier of the DMA function.

Reading vital product data from a NIC takes many milliseconds. So it is read only on nodes with a DMA function, and once
for each function that appears on the bus. It needs root.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from .functions import GPU_CLASSES, NVIDIA_VENDOR, number_in

log = logging.getLogger(__name__)

_MELLANOX: Final = 0x15B3
_DMA_FUNCTION: Final = 0x2100
_NETWORK_CLASS: Final = 0x02  # the highest byte of a class
_MOST_BYTES: Final = 32 << 10  # the largest vital product data that PCI allows

_READ_ONLY_FIELDS: Final = 0x90
_LARGE: Final = 0x80
_END: Final = (0x78, 0x79)


def data_direct_nics(sys_root: Path) -> Mapping[str, str]:
    """The PCI address of the NIC by that of its GPU. Empty on nodes without Data Direct. A GPU whose NIC is not certain
    is left out.
    """
    devices = sys_root / "bus/pci/devices"
    functions = list(_functions(devices))
    dma_functions = [path for path, vendor, device in functions if (vendor, device) == (_MELLANOX, _DMA_FUNCTION)]
    if not dma_functions:
        return {}
    gpus: dict[str, list[str]] = defaultdict(list)
    nics: dict[str, list[str]] = defaultdict(list)
    for path, vendor, device in functions:
        kind = number_in(path / "class") or 0
        if vendor == NVIDIA_VENDOR and kind >> 8 in GPU_CLASSES and not (path / "physfn").is_symlink():
            gpus[_root_port(path)].append(path.name)
        elif vendor == _MELLANOX and device != _DMA_FUNCTION and kind >> 16 == _NETWORK_CLASS:
            nics[_identifier(path)].append(path.name)
    found: dict[str, str] = {}
    for path in dma_functions:
        behind, same = gpus[_root_port(path)], nics[_identifier(path)] if _identifier(path) else []
        if len(behind) == 1 and same and behind[0] not in found:
            found[behind[0]] = min(same)
        else:
            _warn(str(path), len(behind), len(same))
    return found


@lru_cache(maxsize=256)  # once for each state, because the bus is read again and again
def _warn(function: str, gpus: int, nics: int) -> None:
    log.warning(
        "the NIC of the DMA function %s is not paired: %d GPUs are behind its root port, and %d functions of NICs have"
        " its identifier",
        function.rpartition("/")[2],
        gpus,
        nics,
    )


def _functions(devices: Path) -> Iterator[tuple[Path, int, int]]:
    """The functions of NVIDIA's GPUs and NICs: the folder, the vendor and the device ID, in the order of addresses."""
    try:
        names = sorted(os.listdir(devices))  # noqa: PTH208 - names are all that is needed
    except OSError:
        return
    for name in names:
        vendor = number_in(devices / name / "vendor")
        if vendor in (NVIDIA_VENDOR, _MELLANOX):
            yield devices / name, vendor, number_in(devices / name / "device") or 0


def _root_port(function: Path) -> str:
    """The address of the root port above a function: `0008:00:00.0` of
    `../../../devices/pci0008:00/0008:00:00.0/0008:01:00.0`. Empty if the function is on the root bus.
    """
    try:
        parts = function.readlink().parts
    except OSError:
        return ""
    root = next((index for index, part in enumerate(parts) if part.startswith("pci")), len(parts))
    below = parts[root + 1 :]
    return below[0] if len(below) > 1 else ""


def _identifier(function: Path) -> str:
    """The identifier of a NIC, or empty."""
    try:
        return _read_identifier(str(function), os.lstat(function).st_ino)
    except OSError:
        return ""


@lru_cache(maxsize=256)  # by the inode of the link, which changes when the function appears again
def _read_identifier(function: str, _inode: int) -> str:
    try:
        with open(f"{function}/vpd", "rb") as stream:  # noqa: PTH123
            data = stream.read(_MOST_BYTES)
    except OSError as error:
        log.warning("the vital product data of the NIC %s cannot be read: %s", function.rpartition("/")[2], error)
        return ""
    fields = (field for tag, content in _items(data) if tag == _READ_ONLY_FIELDS for field in _fields(content))
    return next((value.decode("ascii", "replace").strip("\\0 ") for name, value in fields if name == b"V3"), "")


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(Tag, content) of each item of vital product data (PCI Local Bus Specification 3.0, appendix I)."""
    while data and data[0] not in _END:
        is_large = data[0] & _LARGE
        start = 3 if is_large else 1
        length = int.from_bytes(data[1:3], "little") if is_large else data[0] & 0x07
        if len(data) < start + length:
            return
        yield data[0], data[start : start + length]
        data = data[start + length :]


def _fields(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(Name, value) of each field of an item."""
    while len(content) >= 3:
        length = content[2]
        yield content[:2], content[3 : 3 + length]
        content = content[3 + length :]
