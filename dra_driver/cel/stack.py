# SPDX-License-Identifier: Apache-2.0
"""Room on Python's stack for deep expressions.

An expression may be nested 250 levels deep, and its macros make a deeper tree of it. Checking, compiling
and evaluating it recurses, in Python code only, which takes no room on the C stack. Expressions that people
write stay far below Python's own limit, and leave it alone. The limit is the whole process's, and is not put back:
another thread may be as deep. The deepest expressions that the parser lets through need about ten thousand.
"""

import inspect
import sys
from typing import Final

from .ast import Node, depth

_FRAMES_PER_LEVEL: Final = 8
_SPARE: Final = 300
"""Frames for what is below and above the recursion."""


def make_room(root: Node) -> None:
    """Raise Python's recursion limit if the tree, called from here or from similarly deep, may need it."""
    needed = _FRAMES_PER_LEVEL * depth(root) + _SPARE
    if needed > sys.getrecursionlimit() // 2:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed + len(inspect.stack(0))))
