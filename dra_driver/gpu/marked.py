# SPDX-License-Identifier: Apache-2.0
"""The hardware and the marks of the same moment.

Two sources tell what the node has: the hardware, and the marks (`ownership`, `passthrough`). A claim that is prepared
or unprepared while one is read after the other makes them contradict each other. For example, a GPU that NVML does not
list yet, and that has no mark any more, looks like a GPU that was lost. So the marks are read before and after the
hardware, and both are read again if the marks differ.

Marks may change so often that no attempt is undisturbed. Then everything whose mark was seen counts as marked. This is
the harmless mistake: a GPU of a virtual machine stays published as before, and a MIG instance of a claim is not
published as an administrator's. The next read corrects it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from .ownership import MigMarks, Owned
from .passthrough import VfioMark, VfioMarks

T = TypeVar("T")

TRIES: Final = 3
"""How often the hardware is read until the marks stay the same meanwhile."""


@dataclass(frozen=True, slots=True)
class Marked:
    """All marks of a node: the places of the MIG instances and vGPUs that were created for claims (`owned`), and the
    GPUs of virtual machines (`away`), one mark for each address.
    """

    owned: frozenset[Owned] = frozenset()
    away: tuple[VfioMark, ...] = ()

    def joined(self, later: "Marked") -> "Marked":
        """The marks of both moments. The later mark of a GPU counts."""
        away = {mark.address: mark for mark in (*self.away, *later.away)}
        return Marked(self.owned | later.owned, tuple(away[address] for address in sorted(away)))


class NodeMarks:
    """The marks that say what the hardware's state means. The plugin writes them, and all processes read them."""

    def __init__(self, instances: MigMarks, taken: VfioMarks) -> None:
        self._instances = instances
        self._taken = taken

    def read(self) -> Marked:
        """The marks as they are now. Raises OSError."""
        return Marked(frozenset((*self._instances.all(), *self._taken.vgpus.all())), self._taken.all())

    def around(self, read: Callable[[], T]) -> tuple[T, Marked]:
        """The result of `read`, and the marks of the same moment. Calls `read` up to TRIES times. Raises the errors of
        `read`, and OSError.
        """
        versions, before = self._versions(), self.read()
        seen = before
        for _ in range(TRIES):
            found = read()
            after, versions_after = self.read(), self._versions()
            if (versions_after, after) == (versions, before):
                return found, after
            seen = before.joined(after)
            versions, before = versions_after, after
        return found, seen

    def _versions(self) -> tuple[int, ...]:
        """Values one of which changes when a mark is written or removed, also if it is undone at once."""
        return self._instances.version(), self._taken.version(), self._taken.vgpus.version()
