# SPDX-License-Identifier: Apache-2.0
"""Whether a value has a parameter's type, as far as that is looked at while an expression runs.

Of a list the first element decides, of a map the first entry. Follows cel-go's `IsAssignableRuntimeType`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from .maps import MapValue
from .quantities import QuantityValue
from .scalars import Uint
from .semvers import Semver
from .times import Duration, Timestamp
from .types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    INT,
    NULL,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    UINT,
    Kind,
    Type,
)
from .values import type_name

Guard = Callable[[Sequence[object]], bool]

_CLASSES: Final[dict[Type, type]] = {
    BOOL: bool,
    BYTES: bytes,
    DOUBLE: float,
    DURATION: Duration,
    INT: int,
    NULL: type(None),
    QUANTITY: QuantityValue,
    SEMVER: Semver,
    STRING: str,
    TIMESTAMP: Timestamp,
    UINT: Uint,
}


def classes(parameters: Sequence[Type]) -> tuple[type | None, ...] | None:
    """The Python class of each parameter's values (None: any), or None where classes alone cannot tell."""
    found: list[type | None] = []
    for parameter in parameters:
        if parameter.is_dynamic or parameter.kind is Kind.PARAMETER:
            found.append(None)
        elif parameter in _CLASSES:
            found.append(_CLASSES[parameter])
        else:
            return None
    return tuple(found)


def accepts(parameter: Type, value: object) -> bool:
    """Whether the value can be given for the parameter."""
    if parameter.is_dynamic or parameter.kind is Kind.PARAMETER:
        return True
    if parameter.kind is Kind.LIST:
        return isinstance(value, list) and (not value or accepts(parameter.element, value[0]))
    if parameter.kind is Kind.MAP:
        if not isinstance(value, MapValue):
            return False
        entry = next(iter(value.items()), None)
        return entry is None or all(map(accepts, parameter.parameters, entry))
    return type_name(value) == parameter.name


def accept_all(parameters: Sequence[Type], values: Sequence[object]) -> bool:
    """Whether the values can be given for the parameters."""
    return len(parameters) == len(values) and all(map(accepts, parameters, values))
