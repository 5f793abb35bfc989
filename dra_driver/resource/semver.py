# SPDX-License-Identifier: Apache-2.0
"""Semantic versions, the type of `version` attributes.

The API takes strict https://semver.org 2.0.0 text only: three numbers without leading zeros,
then optional pre-release and build parts.
"""

import re
from dataclasses import dataclass

_STRICT = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_LENIENT = re.compile(r"v?([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version:
    """The value of a `version` attribute. Equal means equal text, as constraints compare it."""

    text: str

    @property
    def is_strict(self) -> bool:
        """Whether the API server would accept it."""
        return _STRICT.fullmatch(self.text) is not None

    def __str__(self) -> str:
        return self.text


def from_dotted(text: str) -> Version | None:
    """The version for a driver's dotted number: missing parts are 0, leading zeros go.

    `570.158.01` becomes `570.158.1`, `12.8` becomes `12.8.0`. None when `text` is nothing of the kind.
    """
    match = _LENIENT.fullmatch(text.strip())
    if match is None:
        return None
    return Version(".".join(str(int(part or "0")) for part in match.groups()))
