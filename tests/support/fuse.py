# SPDX-License-Identifier: Apache-2.0
"""A file system in user space, spoken to through /dev/fuse (include/uapi/linux/fuse.h, protocol 7.31). It needs root.

It shows the files of another folder. Reads and writes of files can be answered by the test; a write may raise OSError
or block, as a file of sysfs may. The kernel remembers what does not change: the attributes of a file, the target of a
link, and the paths that the test names as lasting. Each system call looks up everything else, and sees its current
state. This matters because most paths of a test lead through the same links and folders.
"""

import contextlib
import ctypes
import errno
import os
import re
import select
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _READLINK, _OPEN, _READ, _WRITE = 1, 2, 3, 4, 5, 14, 15, 16
_STATFS, _RELEASE, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 17, 18, 26, 27, 28, 29
_INTERRUPT, _BATCH_FORGET = 36, 42
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_DIRECT_IO = 1
_CACHE_SYMLINKS = 1 << 23
_FORGET_ENTRY = 3  # FUSE_NOTIFY_INVAL_ENTRY
_BUFFER = 1 << 17
_MOST = 1 << 12
_ROOT = 1
_LONG = 1 << 20  # seconds

Write = Callable[[str, str], None]
"""Called with the path of a file and the text that is written to it."""


def usable() -> bool:
    """Whether this process may mount such a file system."""
    return os.geteuid() == 0 and Path("/dev/fuse").exists()


needs_fuse = pytest.mark.skipif(not usable(), reason="needs root and /dev/fuse")


class Fuse:
    """Shows the folder `backing` at `target` between `mount` and `unmount`. Writes are answered by `on_write`.

    What has a path that `lasting` matches is neither removed nor replaced without `forget`: the kernel asks for it only
    once.
    """

    def __init__(self, backing: Path, target: Path, on_write: Write, lasting: re.Pattern[str]) -> None:
        self._backing = os.fspath(backing)
        self._target = target
        self._on_write = on_write
        self._lasting = lasting
        self._guard = threading.Lock()
        self._nodes: dict[int, str] = {_ROOT: ""}
        self._numbers: dict[tuple[str, int, int, int], int] = {}
        self._device = -1
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="fuse", daemon=True)

    def mount(self) -> None:
        """Show the files."""
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"sysfs-of-test", os.fsencode(self._target), b"fuse", 0, options):
            raise OSError(ctypes.get_errno(), "mount", str(self._target))
        self._thread.start()

    def unmount(self) -> None:
        """End it. Calls that wait for an answer fail."""
        ctypes.CDLL(None).umount2(os.fsencode(self._target), 2)  # MNT_DETACH
        os.close(self._stopped)
        self._thread.join()
        os.close(self._device)
        os.close(self._stop)

    def forget(self, path: str) -> None:
        """Let the kernel ask for a lasting path again, which was removed from the folder."""
        folder, _, name = path.rpartition("/")
        encoded = os.fsencode(name)
        with self._guard:
            numbers = [number for number, known in self._nodes.items() if known == folder]
        for number in numbers:
            message = struct.pack("<QII", number, len(encoded), 0) + encoded + b"\0"
            with contextlib.suppress(FileNotFoundError):  # the kernel does not remember it
                os.write(self._device, _OUT.pack(_OUT.size + len(message), _FORGET_ENTRY, 0) + message)

    def _serve(self) -> None:
        ready = select.poll()
        for descriptor in (self._device, self._stop):
            ready.register(descriptor, select.POLLIN)
        while all(descriptor == self._device for descriptor, _ in ready.poll()):
            try:
                request = os.read(self._device, _BUFFER)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.ENOENT:  # the caller was interrupted
                    continue
                return
            opcode = _IN.unpack_from(request)[1]
            if opcode in (_WRITE, _SETATTR):  # may block
                threading.Thread(target=self._handle, args=(request,), name="fuse-write", daemon=True).start()
            else:
                self._handle(request)

    def _handle(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in _UNANSWERED:
            return
        body = request[_IN.size :]
        try:
            error, answer = 0, self._answer(opcode, node, body)
        except OSError as failed:
            error, answer = failed.errno or errno.EIO, b""
        try:
            os.write(self._device, _OUT.pack(_OUT.size + len(answer), -error, unique) + answer)
        except OSError:
            return  # the caller has gone, or the file system was unmounted

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == _INIT:
            major, minor, readahead, offered = struct.unpack_from("<IIII", body)
            flags = offered & _CACHE_SYMLINKS
            return struct.pack("<IIIIHHIIHHI28x", major, min(minor, 31), readahead, flags, 12, 9, _MOST, 1, 1, 0, 0)
        path = self._nodes[node]
        if opcode == _LOOKUP:
            return self._entry(f"{path}/{body.rstrip(bytes(1)).decode()}")
        if opcode in (_GETATTR, _SETATTR):
            return struct.pack("<QII", 0, 0, 0) + _attributes(os.lstat(self._backing + path))
        if opcode == _READLINK:
            return os.fsencode(os.readlink(self._backing + path))  # noqa: PTH115
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _DIRECT_IO if opcode == _OPEN else 0, 0)
        if opcode == _READ:
            _, offset, size, *_ = struct.unpack_from("<QQI", body)
            return Path(self._backing + path).read_bytes()[offset : offset + size]
        if opcode == _WRITE:
            _, _, size, *_ = struct.unpack_from("<QQIIQII", body)
            self._on_write(path.lstrip("/"), body[40 : 40 + size].decode())
            return struct.pack("<II", size, 0)
        if opcode == _READDIR:
            _, offset, size, *_ = struct.unpack_from("<QQI", body)
            return self._entries(path, offset, size)
        if opcode == _STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (_RELEASE, _RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, "not supported")  # the kernel does not ask again for FLUSH and ACCESS: they succeed

    def _entry(self, path: str) -> bytes:
        found = os.lstat(self._backing + path)
        kind = stat.S_IFMT(found.st_mode)
        # Another link to another target is another file, even if it has the same inode number.
        key = path, found.st_ino, kind, found.st_ctime_ns if kind == stat.S_IFLNK else 0
        with self._guard:
            number = self._numbers.setdefault(key, len(self._nodes) + 1)
            self._nodes[number] = path
        seconds = _LONG if self._lasting.fullmatch(path) else 0
        return struct.pack("<QQQQII", number, 0, seconds, _LONG, 0, 0) + _attributes(found)

    def _entries(self, path: str, offset: int, size: int) -> bytes:
        with os.scandir(self._backing + path) as found:
            entries = sorted((one.name, one.inode()) for one in found)
        answer = b""
        for index, (name, inode) in list(enumerate(entries, start=1))[offset:]:
            encoded = os.fsencode(name)
            one = struct.pack("<QQII", inode, index, len(encoded), 0) + encoded
            one += bytes(-len(one) % 8)
            if len(answer) + len(one) > size:
                break
            answer += one
        return answer


def _attributes(found: os.stat_result) -> bytes:
    size = 4096 if stat.S_ISREG(found.st_mode) else found.st_size
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    return _ATTRIBUTES.pack(found.st_ino, size, 0, *times, 0, 0, 0, found.st_mode, found.st_nlink, 0, 0, 0, 4096, 0)
