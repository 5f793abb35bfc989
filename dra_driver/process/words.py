# SPDX-License-Identifier: Apache-2.0
"""Numbers and lists in texts for people."""

from collections.abc import Sequence
from typing import Final

_NAMED: Final = 3
"""The number of names that `listed` lists."""


def listed(names: Sequence[str], most: int = _NAMED) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
