# SPDX-License-Identifier: Apache-2.0
"""Values that Python has no class for: unsigned integers, optionals, and what Kubernetes' extension types share."""

from typing import ClassVar, Final

from .errors import Fault
from .types import Type

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
UINT_MAX: Final = (1 << 64) - 1


class Uint(int):
    """An unsigned 64-bit integer. Arithmetic on it gives plain ints: wrap what is to stay one."""

    __slots__ = ()


class OptionalValue:
    """optional.of(value), or optional.none() when there is none."""

    __slots__ = ("present", "value")

    def __init__(self, value: object = None, *, present: bool = True) -> None:
        self.value = value
        self.present = present


NONE: Final = OptionalValue(present=False)
"""optional.none()"""


class Extension:
    """A value of a type that Kubernetes adds. Equality with another type is a fault, not false."""

    __slots__ = ()
    cel_type: ClassVar[Type]
    hashable: ClassVar[bool] = True

    def equals(self, other: object) -> bool:
        """CEL's `==` with a value that is not null. Raises Fault for another type."""
        raise NotImplementedError

    @property
    def cost_size(self) -> int:
        """What the value counts for where costs depend on sizes."""
        return 1

    def unwrapped(self) -> object:
        """The value after a trip through Kubernetes' native form, which most extension types do not survive."""
        raise Fault("unsupported_value", f"a {self.cel_type.name} cannot be taken out of a bound optional")


def checked_int(value: int) -> int:
    """An int, if it is one. Raises Fault on overflow."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise Fault("overflow", "integer overflow")


def checked_uint(value: int) -> Uint:
    """A uint, if it is one. Raises Fault on overflow."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise Fault("overflow", "unsigned integer overflow")
