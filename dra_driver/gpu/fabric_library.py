# SPDX-License-Identifier: Apache-2.0
"""Fabric Manager's API through NVIDIA's library libnvfm.so.1 (packages nvidia-fabricmanager-dev and -devel).

Names and layouts of structures are those of the Fabric Manager User Guide, chapter "Data Structures". Each structure
begins with a version: its size, and the number of its layout in the highest byte. The library is initialized once for
a process, and again when another file was installed, because it must have the version of the driver.
"""

import _ctypes
import contextlib
import ctypes
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from .fabric import FabricCode, FabricError, FabricManager, Partition
from .nvml_library import find_library

LIBRARY: Final = "libnvfm.so.1"
SOCKET: Final = "run/nvidia-fabricmanager/socket"
"""Fabric Manager's socket below the driver root, if FM_CMD_UNIX_SOCKET_PATH is set as NVIDIA's DRA driver needs it."""
CONNECT_MILLISECONDS: Final = 5000

_GPUS, _SWITCHES, _PARTITIONS, _PORTS = 16, 12, 64, 64
_INET, _UNIX = 1, 2
_MANAGEMENT = b"SW_MNG"
"""In the vital product data of the bridge to NVLink 5 switches, which are not on the PCI bus themselves."""
_VPD_BYTES = 4096
_u32 = ctypes.c_uint32


class ConnectParams(ctypes.Structure):
    """fmConnectParams_v2. Version 1 ends before `address_type`."""

    _fields_ = (
        ("version", _u32),
        ("address", ctypes.c_char * 256),
        ("timeout_ms", _u32),
        ("is_unix_socket", _u32),
        ("address_type", _u32),
    )


class PartitionGpu(ctypes.Structure):
    """fmFabricPartitionGpuInfo_t. On Hopper and later, `uuid` and `pci_address` are empty."""

    _fields_ = (
        ("physical_id", _u32),
        ("uuid", ctypes.c_char * 80),
        ("pci_address", ctypes.c_char * 32),
        ("links_available", _u32),
        ("links_most", _u32),
        ("link_rate", _u32),
    )


class PartitionInfo(ctypes.Structure):
    """fmFabricPartitionInfo_t."""

    _fields_ = (("id", _u32), ("is_active", _u32), ("gpu_count", _u32), ("gpus", PartitionGpu * _GPUS))


class PartitionList(ctypes.Structure):
    """fmFabricPartitionList_v2, which has the version number 1."""

    _fields_ = (("version", _u32), ("count", _u32), ("most", _u32), ("partitions", PartitionInfo * _PARTITIONS))


class ActivatedList(ctypes.Structure):
    """fmActivatedFabricPartitionList_v1."""

    _fields_ = (("version", _u32), ("count", _u32), ("ids", _u32 * _PARTITIONS))


class FailedDevice(ctypes.Structure):
    """fmNvlinkFailedDeviceInfo_t."""

    _fields_ = (
        ("uuid", ctypes.c_char * 80),
        ("pci_address", ctypes.c_char * 32),
        ("port_count", _u32),
        ("ports", _u32 * _PORTS),
    )


class FailedDevices(ctypes.Structure):
    """fmNvlinkFailedDevices_v1."""

    _fields_ = (
        ("version", _u32),
        ("gpu_count", _u32),
        ("switch_count", _u32),
        ("gpus", FailedDevice * _GPUS),
        ("switches", FailedDevice * _SWITCHES),
    )


class UnsupportedPartition(ctypes.Structure):
    """fmUnsupportedFabricPartitionInfo_t."""

    _fields_ = (("id", _u32), ("gpu_count", _u32), ("physical_ids", _u32 * _GPUS))


class UnsupportedList(ctypes.Structure):
    """fmUnsupportedFabricPartitionList_v1."""

    _fields_ = (("version", _u32), ("count", _u32), ("partitions", UnsupportedPartition * _PARTITIONS))


def version_of(structure: ctypes.Structure, number: int, size: int = 0) -> int:
    """The version with which a structure begins. `size` is that of an older layout."""
    return (size or ctypes.sizeof(structure)) | number << 24


class FabricLibrary(FabricManager):
    """Fabric Manager with the library below `driver_root`. It listens at `address`, which is the path of a UNIX socket
    or a host (`127.0.0.1`, `10.0.0.1:6666`). `proc_root` and `sys_root` are where /proc and /sys are mounted. Used by
    one thread at a time, except for `identity`.
    """

    def __init__(self, driver_root: Path, address: Path | str, proc_root: Path, sys_root: Path) -> None:
        self._driver_root = driver_root
        self.address = address
        self._devices = proc_root / "driver/nvidia-nvswitch/devices"
        self._adapters = sys_root / "class/infiniband"
        self._bridges: dict[Path, bool] = {}
        self._library: Any = None
        self._loaded: object = None

    @property
    def identity(self) -> str:
        if find_library(self._driver_root, LIBRARY) is None:
            return ""
        if isinstance(self.address, str):
            return self.address
        try:
            found = self.address.stat()
        except OSError:
            return ""
        return f"{found.st_dev}-{found.st_ino}-{found.st_ctime_ns}"

    def has_switches(self) -> bool:
        return any(self._devices.glob("*")) or any(map(self._is_bridge, self._adapters.glob("*/device/vpd")))

    def supported_partitions(self) -> tuple[Partition, ...]:
        found = PartitionList()
        found.version = version_of(found, 1)
        self._call("fmGetSupportedFabricPartitions", ctypes.byref(found))
        return tuple(
            Partition(
                partition.id,
                tuple(sorted(gpu.physical_id for gpu in partition.gpus[: min(partition.gpu_count, _GPUS)])),
                bool(partition.is_active),
            )
            for partition in found.partitions[: min(found.count, _PARTITIONS)]
        )

    def activate(self, partition: int) -> None:
        self._call("fmActivateFabricPartition", _u32(partition))

    def deactivate(self, partition: int) -> None:
        self._call("fmDeactivateFabricPartition", _u32(partition))

    def set_activated(self, partitions: Collection[int]) -> None:
        given = ActivatedList(count=len(partitions), ids=tuple(partitions))
        given.version = version_of(given, 1)
        self._call("fmSetActivatedFabricPartitions", ctypes.byref(given))

    def failed_gpus(self) -> frozenset[str]:
        found = FailedDevices()
        found.version = version_of(found, 1)
        self._call("fmGetNvlinkFailedDevices", ctypes.byref(found))
        gpus = found.gpus[: min(found.gpu_count, _GPUS)]
        names = {gpu.uuid.decode(errors="replace") for gpu in gpus} | {_address(gpu.pci_address) for gpu in gpus}
        return frozenset(names - {""})

    def unsupported_partitions(self) -> tuple[Partition, ...]:
        found = UnsupportedList()
        found.version = version_of(found, 1)
        self._call("fmGetUnsupportedFabricPartitions", ctypes.byref(found))
        return tuple(
            Partition(partition.id, tuple(sorted(partition.physical_ids[: min(partition.gpu_count, _GPUS)])))
            for partition in found.partitions[: min(found.count, _PARTITIONS)]
        )

    # Parts

    def _is_bridge(self, vpd: Path) -> bool:
        if vpd not in self._bridges:  # reading this takes long
            with contextlib.suppress(OSError), vpd.open("rb") as file:
                self._bridges[vpd] = _MANAGEMENT in file.read(_VPD_BYTES)
        return self._bridges.get(vpd, False)

    def _call(self, name: str, argument: Any) -> None:
        with self._connected() as (library, handle):
            _checked(name, getattr(library, name)(handle, argument))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[Any, ctypes.c_void_p]]:
        library, handle = self._load(), ctypes.c_void_p()
        params = ConnectParams()
        params.address = os.fsencode(self.address)
        params.timeout_ms, params.is_unix_socket = CONNECT_MILLISECONDS, isinstance(self.address, Path)
        params.address_type = _UNIX if params.is_unix_socket else _INET
        params.version = version_of(params, 2)
        code = library.fmConnect(ctypes.byref(params), ctypes.byref(handle))
        if code == FabricCode.VERSION_MISMATCH:  # the library of an older driver
            params.version = version_of(params, 1, ConnectParams.address_type.offset)
            code = library.fmConnect(ctypes.byref(params), ctypes.byref(handle))
        _checked("fmConnect", code)
        try:
            yield library, handle
        finally:
            library.fmDisconnect(handle)

    def _load(self) -> Any:
        """The currently installed library, initialized."""
        path = find_library(self._driver_root, LIBRARY)
        try:
            if path is None:
                raise OSError(f"there is no {LIBRARY} below {self._driver_root}")
            found = path.stat()
            identity = path, found.st_dev, found.st_ino, found.st_mtime_ns
            if identity == self._loaded:
                return self._library
            self._unload()
            library: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise FabricError(FabricCode.GENERIC_ERROR, "dlopen", str(error)) from None
        _checked("fmLibInit", library.fmLibInit())
        self._library, self._loaded = library, identity
        return library

    def _unload(self) -> None:
        if self._library is not None:
            self._library.fmLibShutdown()
            _ctypes.dlclose(self._library._handle)
            self._library = self._loaded = None


def _checked(call: str, number: int) -> None:
    if number:
        code = FabricCode(number)
        detail = f"an unknown error, code {number}" if code != number else ""
        raise FabricError(code, call, detail)


def _address(text: bytes) -> str:
    """`0000:3b:00.0` for `00000000:3B:00.0`."""
    domain, colon, rest = text.decode(errors="replace").lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}" if colon else ""
