# SPDX-License-Identifier: Apache-2.0
"""How many devices of one kind fit on a GPU, as things are and if what is in use lay elsewhere on it.

A GPU is a set of counters; a device takes an amount of each. Devices of one kind (a MIG profile) differ in where they
are, so that of two GPUs with equal parts in use one may have room and the other may not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

Amounts = tuple[int, ...]
"""Of each counter, in the order of the counters."""

_MOST_STEPS: Final = 20_000
"""After which a search ends with the best that it found: a GPU in MIG mode takes a few hundred."""


def first_fit(devices: Sequence[Amounts], left: Amounts) -> tuple[int, ...]:
    """Which of the devices can be had one after the other, as the scheduler goes through them."""
    taken = []
    for index, amounts in enumerate(devices):
        after = _minus(left, amounts)
        if after is not None:
            left = after
            taken.append(index)
    return tuple(taken)


def best_fit(total: Amounts, held: Sequence[tuple[Sequence[Amounts], int]], wanted: Sequence[Amounts]) -> int:
    """The most of `wanted` that fit besides what is `held`, (devices of one kind, how many of them), at its best.

    0 when what is held does not fit at all.
    """
    search = _Search(wanted)
    bound = len(first_fit(wanted, total))
    most_first = sorted((one for one in held if one[1]), key=lambda one: len(one[0]))
    search.place(most_first, 0, total, bound)
    return search.best


def _minus(left: Amounts, amounts: Amounts) -> Amounts | None:
    """What is left after that; None when it is not there."""
    after = tuple([have - need for have, need in zip(left, amounts, strict=True)])
    return None if min(after, default=0) < 0 else after


@dataclass(slots=True)
class _Search:
    """Tries places for what is held, and counts what fits then."""

    wanted: Sequence[Amounts]
    best: int = 0
    steps: int = 0
    seen: set[tuple[int, int, int, Amounts]] = field(default_factory=set)

    def place(self, held: Sequence[tuple[Sequence[Amounts], int]], first: int, left: Amounts, bound: int) -> None:
        """Place the devices of held[0] from index `first` on, then the others; stop when `bound` is reached."""
        key = (len(held), held[0][1] if held else 0, first, left)
        self.steps += 1
        if key in self.seen or self.best >= bound or self.steps > _MOST_STEPS:
            return
        self.seen.add(key)
        if not held:
            self.best = max(self.best, len(first_fit(self.wanted, left)))
            return
        (devices, count), *others = held
        for index in range(first, len(devices)):
            after = _minus(left, devices[index])
            if after is not None:
                rest = others if count == 1 else [(devices, count - 1), *others]
                self.place(rest, index + 1 if count > 1 else 0, after, bound)
