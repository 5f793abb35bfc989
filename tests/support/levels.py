# SPDX-License-Identifier: Apache-2.0
"""The levels of tests, and what keeps tests of the level `unit` inside of their process.

Each test has one level: that of its own marker or its file's marker, otherwise that of its folder, otherwise `unit`.
"""

import contextlib
import functools
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

LEVELS: Final = ("unit", "node", "cluster", "docs")
FOLDERS: Final = {"attacks": "node", "charts": "cluster", "docs": "docs", "faults": "node", "sandbox": "cluster"}
"""Levels of folders of tests/. Markers of files and tests precede them."""
SERVER_FIXTURES: Final = frozenset({"client", "kubeconfig"})
"""Fixtures of the API server that all tests of a worker share. A connection may exist since an earlier test."""

_FILE_LEVEL: Final = re.compile(rf"^pytestmark = \[?pytest\.mark\.({'|'.join(LEVELS)})\b", re.MULTILINE)
_TESTS: Final = Path(__file__).parents[1]
_FORBIDDEN: Final = frozenset(
    {
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"),
        *("socket.bind", "socket.connect"),
    }
)
"""Audit events: https://docs.python.org/3/library/audit_events.html. Native libraries, such as gRPC, raise none."""


class _Watch:
    def __init__(self) -> None:
        self.found: list[str] = []
        self._before = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}

    def see(self, event: str, arguments: Sequence[Any]) -> None:
        if threading.get_ident() not in self._before:
            stack = "".join(traceback.format_stack(sys._getframe(2), limit=12))
            self.found.append(f"{event}{arguments!r}\n{stack}")


_watches: list[_Watch] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watches and event in _FORBIDDEN:
        _watches[-1].see(event, arguments)


sys.addaudithook(_audit)


def level_of(item: pytest.Item) -> str:
    """The level of a test. Raises UsageError if it has several."""
    found = {marker.name for marker in item.iter_markers()} & {*LEVELS}
    if len(found) > 1:
        raise pytest.UsageError(f"{item.nodeid} has several levels: {', '.join(sorted(found))}")
    return found.pop() if found else _level_of_folder(item.path)


@functools.cache
def _level_of_folder(path: Path) -> str:
    """The level of a file's folder."""
    folder = path.relative_to(_TESTS).parts[0] if path.is_relative_to(_TESTS) else ""
    return FOLDERS.get(folder, "unit")


def is_file_of_another_level(path: Path) -> bool:
    """Whether no test of a file can be of the level `unit`, as far as its text tells without importing it."""
    if path.suffix != ".py" or not path.is_relative_to(_TESTS):
        return False
    text = path.read_text("utf-8")
    if "mark.unit" in text:
        return False
    return path.relative_to(_TESTS).parts[0] in FOLDERS or _FILE_LEVEL.search(text) is not None


@contextlib.contextmanager
def inside_of_the_process(item: pytest.Item) -> Iterator[None]:
    """Fails if a test of the level `unit` starts a process or opens a socket, also in a thread that it has started."""
    if item.get_closest_marker("unit") is None:
        yield
        return
    if isinstance(item, pytest.Function) and (shared := SERVER_FIXTURES.intersection(item.fixturenames)):
        pytest.fail(f"a unit test uses {', '.join(sorted(shared))}: mark it `cluster`", pytrace=False)
    watch = _Watch()
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)
    if watch.found:
        pytest.fail(f"a unit test started a process or opened a socket: {watch.found[0]}", pytrace=False)
