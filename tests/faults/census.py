# SPDX-License-Identifier: Apache-2.0
"""What a process holds on to: the sizes of all containers that can be reached from an object, threads, open files.

A path says how a container is reached (`_Plugin._engine.records._known`), with `[]` for whatever is in a container.
Containers with the same path are counted together, so a count that grows names what grows.
"""

import contextlib
import gc
import json
import re
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

Census = dict[str, dict[str, int]]
"""Counts by kind: `containers` (items by path), `threads` and `files` (by name)."""

BOUNDED = {
    "._events._entries": 1000,  # what an EventRecorder remembers for a while
    "._events._budgets": 1000,
    "threads write events": 1,
    "._connection._pool.": 1000,  # what a pool of connections keeps of the last answer on each
    "files socket:": 10,  # such connections
    "._metrics": 100,  # values of labels, of which there is a limited number
    "session.": 200,  # what is seen of the GPUs: they, their profiles, and the MIG instances on them now
    "._devices": 3000,
    "Publisher._attempts._attempts": 2000,  # what was sent last of each slice of the node
    "._waiters": 4,  # threads that wait for something at the moment, of which `threads` counts all
    "._monitor.": 200,
    "files anon_inode:inotify": 6,  # the simulated node's way to wait for events, and how policies are followed
}
"""Containers whose size follows from something else than the number of claims, by a part of their path, and how large
they may become.
"""

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_LEAVES = (str, bytes, int, float, bool, type(None), type, ModuleType, CodeType, FrameType, GeneratorType)
_NUMBERS = re.compile(r"\d+")
_NAMED = re.compile(r"(nvml)-.*")  # after a GPU, by its index or UUID


def answer_to(number: signal.Signals, root: str, file: Path) -> None:
    """From now on write the census of this process to `file` whenever the signal comes. `root` is the name of the type
    whose only object is the root of all containers.
    """

    def answer(*_: object) -> None:
        # No other thread may run meanwhile: a tuple that it is about to make is broken by a second reference to it.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            (found,) = (one for one in gc.get_objects() if type(one).__name__ == root)
            text = json.dumps(census(found))
        finally:
            sys.setswitchinterval(interval)
        temporary = file.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(file)

    signal.signal(number, answer)


def census(root: object) -> Census:
    """The census of this process."""
    return {
        "containers": containers(root),
        "threads": dict(Counter(_NAMED.sub(r"\1", _NUMBERS.sub("N", one.name)) for one in threading.enumerate())),
        "files": dict(Counter(_open_files())),
    }


def containers(root: object) -> dict[str, int]:
    """How many items all containers of a path have together."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([(type(root).__name__, root)])
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen or isinstance(one, _LEAVES):
            continue
        seen.add(id(one))
        if isinstance(one, _CONTAINERS) and len(one):
            sizes[path] += len(one)
        waiting.extend(_parts(path, one))
    return dict(sizes)


def grown(before: Census, after: Census, **more: int) -> dict[str, tuple[int, int]]:
    """What there is more of than before, as (before, after), beyond what has a bound of its own. `more` are further
    bounds, by the last word of the path.
    """
    bounds = BOUNDED | {f".{name}": most for name, most in more.items()}
    return {
        f"{kind} {name}": (before[kind].get(name, 0), count)
        for kind, counts in after.items()
        for name, count in counts.items()
        if count
        > max(before[kind].get(name, 0), *(most for path, most in bounds.items() if path in f"{kind} {name}"), 0)
    }


def _parts(path: str, one: object) -> Iterator[tuple[str, object]]:
    """What an object refers to, each with its path."""
    match one:
        case dict():
            yield from ((f"{path}[]", part) for pair in one.items() for part in pair)
        case list() | tuple() | set() | frozenset() | deque():
            yield from ((f"{path}[]", part) for part in one)
        case MethodType() | BuiltinFunctionType():
            yield path, one.__self__
        case FunctionType():
            for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
                yield f"{path}.{name}", _content(cell)
            yield from ((f"{path}()", part) for part in one.__defaults__ or ())
        case _:
            yield from ((f"{path}.{name}", part) for name, part in _attributes(one).items())
    if isinstance(one, _CONTAINERS) and hasattr(one, "__dict__"):
        yield from ((f"{path}.{name}", part) for name, part in vars(one).items())


def _attributes(one: object) -> dict[str, Any]:
    found = dict(getattr(one, "__dict__", {}))
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(name, str) and hasattr(one, name):
                found.setdefault(name, getattr(one, name))
    return found or {str(number): part for number, part in enumerate(gc.get_referents(one))}


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            yield _NUMBERS.sub("N", str(link.readlink()))
