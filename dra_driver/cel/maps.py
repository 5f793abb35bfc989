# SPDX-License-Identifier: Apache-2.0
"""CEL maps: literals, maps with text keys, and the device's two-level maps with their default.

Follows cel-go's `common/types/map.go` and the `mapper` of Kubernetes' DRA evaluator. Keys of
different types never collide (`1`, `1u`, `1.0` and `true` are four keys); a look-up by number finds
int and uint keys alike.
"""

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import ClassVar

from .errors import Abort
from .scalars import INT_MAX, INT_MIN, UINT_MAX, Extension, Uint

Found = tuple[bool, object]
NOT_FOUND: Found = (False, None)


class MapValue:
    """A map. What every kind of it answers."""

    __slots__ = ()
    zero_when_empty: ClassVar[bool] = True

    def find(self, key: object) -> Found:
        """(True, value), or (False, None). Raises Abort for a key that cannot be hashed."""
        raise NotImplementedError

    def contains(self, key: object) -> bool:
        """CEL's `key in map`."""
        return self.find(key)[0]

    def keys(self) -> Iterator[object]:
        """The keys, in insertion order (which Kubernetes does not promise)."""
        raise NotImplementedError

    def items(self) -> Iterator[tuple[object, object]]:
        """Keys with values, in the order of `keys`."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class TextMap(MapValue):
    """A map whose keys are all strings."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[str, object]) -> None:
        self.entries = entries

    def find(self, key: object) -> Found:
        if key.__class__ is str and key in self.entries:
            return True, self.entries[key]
        return NOT_FOUND

    def keys(self) -> Iterator[object]:
        return iter(self.entries)

    def items(self) -> Iterator[tuple[object, object]]:
        return iter(self.entries.items())

    def __len__(self) -> int:
        return len(self.entries)


EMPTY = TextMap({})


class DomainMap(TextMap):
    """`device.attributes` and `device.capacity`: indexing finds an empty map for an unknown domain, `in` does not."""

    __slots__ = ()
    zero_when_empty: ClassVar[bool] = False

    def find(self, key: object) -> Found:
        found = super().find(key)
        return found if found[0] else (True, EMPTY)

    def contains(self, key: object) -> bool:
        return super().find(key)[0]

    def domain(self, name: str) -> TextMap:
        """The entries of one domain."""
        found = self.entries.get(name)
        return found if isinstance(found, TextMap) else EMPTY


class LiteralMap(MapValue):
    """A map made by an expression. `insert` is for the comprehension that builds it."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[object, object]] = {}

    def insert(self, key: object, value: object) -> None:
        """Set the value of a key. Raises Abort for a key that cannot be hashed."""
        self._entries[hashable(key)] = (key, value)

    def remove(self, key: object) -> None:
        """Forget a key, if it is there."""
        self._entries.pop(hashable(key), None)

    def copy(self) -> "LiteralMap":
        """A map with the same entries."""
        twin = LiteralMap()
        twin._entries = dict(self._entries)
        return twin

    def find(self, key: object) -> Found:
        if not self._entries:
            return NOT_FOUND
        for candidate in _candidates(key):
            entry = self._entries.get(candidate)
            if entry is not None:
                return True, entry[1]
        return NOT_FOUND

    def keys(self) -> Iterator[object]:
        return (key for key, _ in self._entries.values())

    def items(self) -> Iterator[tuple[object, object]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def hashable(key: object) -> Hashable:
    """A key for a Python dict that keeps values of different types apart. Raises Abort as LiteralMap does."""
    kind = key.__class__
    if kind is str:
        return key
    if kind is bytes or (isinstance(key, Extension) and not key.hashable):
        raise Abort("internal", f"a {kind.__name__.lower()} value cannot be hashed, as maps and sets need it")
    if isinstance(key, list | MapValue):  # only equal to itself
        return kind, id(key)
    return kind, key


def _candidates(key: object) -> Iterator[Hashable]:
    """The dict keys under which an entry for `key` may be: its own, and for numbers the equal int and uint."""
    yield hashable(key)
    kind = key.__class__
    if kind is float:
        if not math.isfinite(key) or key != int(key):  # type: ignore[arg-type, call-overload]
            return
        whole = int(key)  # type: ignore[call-overload]
        if INT_MIN < whole < INT_MAX:
            yield int, whole
        if 0 <= whole <= UINT_MAX:
            yield Uint, Uint(whole)
    elif kind is int and key >= 0:  # type: ignore[operator]
        yield Uint, Uint(key)  # type: ignore[call-overload]
    elif kind is Uint and key <= INT_MAX:  # type: ignore[operator]
        yield int, int(key)  # type: ignore[call-overload]
