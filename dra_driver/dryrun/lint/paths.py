# SPDX-License-Identifier: Apache-2.0
"""Field paths such as `spec.devices.requests[0].name` or `metadata.labels[app]`, as the codec writes them."""

import re
from typing import Any

Steps = tuple[str | int, ...]

_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")


def resolve(value: Any, path: str) -> tuple[Steps, bool]:
    """The keys and indices behind `path`, as far as `value` has them, and whether that is the whole path.

    A key may itself have dots (`metadata.labels.app.kubernetes.io/name`): the shortest that exists is taken.
    """
    names = [bracketed or plain for bracketed, plain in _STEP.findall(path)]
    steps: list[str | int] = []
    while names:
        step, used = _step(value, names)
        if step is None:
            return tuple(steps), False
        steps.append(step)
        value = value[step]
        names = names[used:]
    return tuple(steps), True


def _step(value: Any, names: list[str]) -> tuple[str | int | None, int]:
    """The next step into `value`, and how many names it used up."""
    if isinstance(value, dict):
        for used in range(1, len(names) + 1):
            key = ".".join(names[:used])
            if key in value:
                return key, used
    if isinstance(value, list) and names[0].isdecimal() and int(names[0]) < len(value):
        return int(names[0]), 1
    return None, 0


def is_within(path: str, outer: str) -> bool:
    """Whether `path` is `outer` or a place in it."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}[")) or not outer
