# SPDX-License-Identifier: Apache-2.0
"""What a process holds: objects by type, items of containers by type of the container, threads, and open files."""

import abc
import contextlib
import functools
import gc
import json
import re
import signal
import sys
import threading
import time
import types
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ResourceCounts = dict[str, dict[str, int]]
"""Counts by kind: `objects` and `items` (by type), `threads` and `files` (by name)."""


class Tolerance(NamedTuple):
    """How many more objects or items of a type there may be after claims came and went: a number, and a share of those
    before. Caches with a limit fill up, for example those of Events and connections.
    """

    number: int
    share: float


TOLERANCE: Final = Tolerance(40, 0.0)
"""For a life of more claims of the same kinds: anything that is kept for each claim is found."""
SOAK_TOLERANCE: Final = Tolerance(120, 0.02)
"""For lives with many kinds of faults, in which processes are replaced and some code runs for the first time."""
FEW: Final = 10
"""How many more threads and open files of a name there may be: a pool of connections, watches of simulated nodes, and
threads that wait at the moment.
"""

_CONTAINERS = (dict, list, set, frozenset, deque)
_LRU_CACHE = type(functools.lru_cache(len))
_CLASS_CACHE = next(type(value) for value in vars(abc.ABC).values() if type(value).__module__ == "_abc")
_OF_CACHES = (weakref.ReferenceType, types.BuiltinFunctionType)  # what class caches consist of
_NUMBERS = re.compile(r"\d+")
_NAMED = re.compile(r"(nvml)-.*")  # after a GPU, by its index or UUID


def write_on_signal(number: signal.Signals, file: Path) -> None:
    """From now on write the counts of this process to `file` whenever the signal comes."""

    def answer(*_: object) -> None:
        # No other thread may run meanwhile: a tuple that it is about to make is broken by a second reference to it.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60)
        time.sleep(0.05)  # threads that wait for their turn already learn of the new interval
        try:
            if gc.get_freeze_count():  # the first time: most processes are never asked, and counting takes long
                resource_counts()  # fills the caches of what counting calls, of the few objects that are not frozen
                gc.unfreeze()  # what the process was forked with counts, too
            text = json.dumps(resource_counts())
        finally:
            sys.setswitchinterval(interval)
        temporary = file.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(file)

    signal.signal(number, answer)


def resource_counts() -> ResourceCounts:
    """The counts of this process, without garbage."""
    gc.collect()
    objects = gc.get_objects()
    items: Counter[str] = Counter()
    seen = {id(part) for owner in objects if _is_cache(owner) for part in gc.get_referents(owner)}
    for owner in objects:  # containers of nothing but texts and numbers are found by what refers to them
        for part in (owner, *gc.get_referents(owner)):
            if isinstance(part, _CONTAINERS) and id(part) not in seen:
                seen.add(id(part))
                items[_name(part)] += len(part)
    return {
        "objects": dict(Counter(_name(value) for value in objects if type(value) not in _OF_CACHES)),
        "items": dict(items),
        "threads": dict(Counter(_NAMED.sub(r"\1", _NUMBERS.sub("N", thread.name)) for thread in threading.enumerate())),
        "files": dict(Counter(_open_files())),
    }


def grown(
    before: ResourceCounts, after: ResourceCounts, tolerance: Tolerance = TOLERANCE
) -> dict[str, tuple[int, int]]:
    """What there is more of than before, as (before, after), beyond the tolerance."""
    return {
        f"{kind} {name}": (before[kind].get(name, 0), count)
        for kind, counts in after.items()
        for name, count in counts.items()
        if count > _limit(kind, before[kind].get(name, 0), tolerance)
    }


def _limit(kind: str, before: int, tolerance: Tolerance) -> float:
    return before + (tolerance.number + before * tolerance.share if kind in ("objects", "items") else FEW)


def _is_cache(value: Any) -> bool:
    """Caches that have a limit: of functions, and of `isinstance`, which have an entry for each class."""
    if type(value) is _LRU_CACHE:
        return value.cache_info().maxsize is not None
    return type(value) is _CLASS_CACHE


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            yield _NUMBERS.sub("N", str(link.readlink()))
