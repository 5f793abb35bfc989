# SPDX-License-Identifier: Apache-2.0
"""CEL of admission policies and webhooks, evaluated with cel-python instead of an API server.

Our own CEL has the environment of device selectors only, where there is no `object` and no `request`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import celpy
from celpy.adapter import json_to_cel


def evaluate(expression: str, known: Mapping[str, Any]) -> Any:
    """What an expression gives; `known` has JSON by variable, and what other expressions gave."""
    context: Any = {name: json_to_cel(value) for name, value in known.items()}
    return _program(expression).evaluate(context)


@functools.cache
def _program(expression: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))
