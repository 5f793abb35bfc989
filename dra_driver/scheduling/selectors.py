# SPDX-License-Identifier: Apache-2.0
"""Label selectors. Follows apimachinery's `metav1.LabelSelectorAsSelector` and `labels.Requirement`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..resource.codec import Fields


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All of `requirements` (key, operator, values) must hold; without any it matches everything.

    `nothing` is the selector that is absent: it matches nothing.
    """

    requirements: tuple[tuple[str, str, frozenset[str]], ...] = ()
    nothing: bool = False

    @property
    def everything(self) -> bool:
        """Whether it is there and has no requirements."""
        return not self.nothing and not self.requirements

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it matches an object with these labels."""
        if self.nothing:
            return False
        for key, operator, values in self.requirements:
            value = labels.get(key)
            match operator:
                case "In":
                    met = value is not None and value in values
                case "NotIn":
                    met = value is None or value not in values
                case "Exists":
                    met = value is not None
                case _:
                    met = value is None
            if not met:
                return False
        return True


NOTHING: Final = LabelSelector(nothing=True)
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def decode_label_selector(fields: Fields | None) -> LabelSelector:
    """A metav1.LabelSelector; NOTHING when it is absent. Raises DecodeError."""
    if fields is None:
        return NOTHING
    equal = [(key, "In", frozenset((value,))) for key, value in fields.text_map("matchLabels").items()]
    return LabelSelector((*equal, *fields.objects("matchExpressions", _requirement)))


def _requirement(fields: Fields) -> tuple[str, str, frozenset[str]]:
    operator = fields.required_text("operator")
    if operator not in _OPERATORS:
        raise fields.error("operator", f"{operator!r} is none of {', '.join(_OPERATORS)}")
    return fields.required_text("key"), operator, frozenset(fields.texts("values"))
