# SPDX-License-Identifier: Apache-2.0
"""Flags that several questions share, handed to them as one argument."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def gathered(command: F, options: Sequence[Callable[[Any], Any]], name: str, make: Callable[..., object]) -> F:
    """`command` with click `options`; what they say goes through `make` (its parameters are theirs) into `name`."""
    parameters = tuple(inspect.signature(make).parameters)

    @functools.wraps(command)
    def wrapper(*args: object, **kwargs: object) -> object:
        kwargs[name] = make(*(kwargs.pop(parameter) for parameter in parameters))
        return command(*args, **kwargs)

    for option in reversed(options):
        option(wrapper)
    return cast(F, wrapper)
