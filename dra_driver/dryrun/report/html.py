# SPDX-License-Identifier: Apache-2.0
"""HTML that cannot be made without escaping: text becomes markup only by way of `tag`."""

from html import escape
from typing import Final

_VOID: Final = {"meta", "link"}


class Html(str):
    """Markup. A plain str is text, whatever it looks like."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """An element. Text among `children` is escaped, Html is not.

    A trailing underscore is dropped from the names of attributes, other underscores become hyphens; True gives an
    attribute without a value, False and the empty string none.
    """
    given = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value)
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Elements and text one after the other."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def _attribute(name: str, value: str | bool) -> str:
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
