# SPDX-License-Identifier: Apache-2.0
"""Regular expressions: RE2, which takes time linear in the text, with the syntax of Go's regexp package."""

import functools
import re
from typing import Any, Final

from .errors import Fault

_MEMORY: Final = 64 << 20
_ONLY_RE2: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")
"""\\C matches one byte: known to the RE2 library, not to Go."""


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """The compiled pattern. Raises Fault when it is none."""
    import re2  # type: ignore[import-untyped]  # compiled code, needed by few expressions

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    if _ONLY_RE2.search(pattern):
        raise Fault("regex", f"error parsing regular expression {pattern!r}: invalid escape sequence \\C")
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        raise Fault("regex", f"error parsing regular expression {pattern!r}: {_reason(error)}") from None


def encoded(text: str) -> bytes:
    """The text as patterns search it fastest. What is no character (a lone surrogate out of JSON) becomes '?'."""
    return text.encode("utf-8", "replace")


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
