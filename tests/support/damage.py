# SPDX-License-Identifier: Apache-2.0
"""What may happen to a file, or stand in its place."""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

Damage = Callable[[Path], object]
"""Does something to the file at a path, or puts something where there is none."""


def _gone(path: Path) -> None:
    """Nothing stands at the path."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"before-{path.name}-{os.urandom(4).hex()}"))
    else:
        path.unlink(missing_ok=True)


def _replaced(make: Damage) -> Damage:
    def damage(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _gone(path)
        make(path)

    return damage


def _full_directory(path: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"somebody's")


def _dead_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path has 107 bytes
    os.close(folder)


def _truncated(path: Path) -> None:
    data = path.read_bytes() if path.is_file() else b'{"version": 2, "claim": {"namespace": "default", "na'
    _replaced(lambda path: path.write_bytes(data[: len(data) // 3]))(path)


WRONG_KINDS: Mapping[str, Damage] = {
    "an empty directory": _replaced(lambda path: path.mkdir()),
    "a directory with files": _replaced(_full_directory),
    "a link to nothing": _replaced(lambda path: path.symlink_to("nothing")),
    "a link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "a pipe": _replaced(lambda path: os.mkfifo(path)),
    "a dead socket": _replaced(_dead_socket),
}
"""Something else than a file."""

CONTENTS: Mapping[str, Damage] = {
    "empty": _replaced(lambda path: path.touch()),
    "truncated": _truncated,
    "binary": _replaced(lambda path: path.write_bytes(bytes(range(256)) * 8)),
    "other JSON": _replaced(lambda path: path.write_bytes(b'[{"version": "two"}, null]')),
    "deep JSON": _replaced(lambda path: path.write_bytes(b"[" * 200_000)),
}
"""A file whose content is not what it should be."""

DAMAGES: Mapping[str, Damage] = {**CONTENTS, **WRONG_KINDS}


def aside_of(path: Path) -> Path:
    """Where what stood at `path` was set aside."""
    (found,) = path.parent.glob(f".{path.name}.*.aside")
    return found
