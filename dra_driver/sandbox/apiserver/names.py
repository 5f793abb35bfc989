# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' rules for names and labels, as errors of fields."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.resource.names import is_driver_name, is_label, is_label_key, is_label_value, is_subdomain

from . import field_errors as errors
from .field_errors import FieldError

_KEY_TEXT: Final = "at most 63 letters, digits, and inner hyphens, underscores and dots"

_version = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?", re.ASCII)
_STABILITY: Final = {None: 0, "beta": 1, "alpha": 2}


@dataclass(frozen=True, slots=True)
class NameRule:
    """A form of names. `text` describes it."""

    allows: Callable[[str], bool]
    text: str

    def problems(self, name: str, field: str) -> Iterator[FieldError]:
        """Yield an error if the name does not have this form."""
        if not self.allows(name):
            yield errors.invalid(field, name, self.text)


LABEL: Final = NameRule(is_label, "must be a DNS label: at most 63 lower case letters, digits and inner hyphens")
SUBDOMAIN: Final = NameRule(
    is_subdomain, "must be a DNS subdomain: lower case letters, digits, and inner hyphens and dots"
)
DRIVER: Final = NameRule(is_driver_name, "must be a DNS subdomain of at most 63 characters")
LABEL_KEY: Final = NameRule(is_label_key, f"must be NAME or DOMAIN/NAME; the name has {_KEY_TEXT}")
LABEL_VALUE: Final = NameRule(is_label_value, f"must have {_KEY_TEXT}")
PATH_SEGMENT: Final = NameRule(
    lambda name: name not in (".", "..") and not re.search("[/%]", name), "must not contain / or %, nor be . or .."
)
"""The names of RBAC objects, which must only be usable in a URL."""


def listed_problems(found: Sequence[str], path: str) -> Iterator[FieldError]:
    """Yield the problems of the names of the items in a list: each is a DNS label and occurs once."""
    for index, name in enumerate(found):
        yield from LABEL.problems(name, f"{path}[{index}].name")
        if name in found[:index]:
            yield errors.duplicate(f"{path}[{index}].name", name)


def version_order(name: str) -> tuple[int, int, int, str]:
    """Return a key that sorts API versions as Kubernetes prefers them: v2, v1, v1beta2, v1beta1, v1alpha1, others."""
    match = _version.fullmatch(name)
    if match is None:
        return (3, 0, 0, name)
    return (_STABILITY[match[2]], -int(match[1]), -int(match[3] or 0), "")
