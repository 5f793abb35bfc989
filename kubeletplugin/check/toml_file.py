# SPDX-License-Identifier: Apache-2.0
"""A configuration file of a container runtime: its TOML, and the line of each key, so that findings can name it."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .host import Host, Unreadable

_HEADER = re.compile(r"^\s*\[(?!\[)(.+?)\]\s*(?:#.*)?$")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file that was read, at `path` of the host."""

    path: str
    text: str
    value: Mapping[str, Any]

    def table(self, *keys: str) -> Mapping[str, Any] | None:
        """The table at `keys`, None when there is none."""
        value: Any = self.value
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else None

    def line(self, table: Iterable[str], key: str = "") -> int | None:
        """The number of the line with the header of `table`, or of `key` in that table; None when it is written in
        another way (an inline table, a dotted key).
        """
        wanted, inside = list(table), False
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := _HEADER.match(line):
                inside = _keys(header[1]) == wanted
                if inside and not key:
                    return number
            elif inside and key and re.match(rf"\s*{re.escape(key)}\s*=", line):
                return number
        return None


def read_toml(host: Host, path: str) -> TomlFile | Unreadable | None:
    """The file, None when there is none. One that is not TOML is unreadable."""
    text = host.read(path)
    if text is None or isinstance(text, Unreadable):
        return text
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        return Unreadable(path, f"not TOML: {error}")


def quoted(text: str) -> str:
    """A basic string of TOML."""
    escaped = "".join(f"\\u{ord(char):04x}" if char in '"\\' or ord(char) < 0x20 else char for char in text)
    return f'"{escaped}"'


def array(texts: Iterable[str]) -> str:
    """An array of strings of TOML."""
    return f"[{', '.join(map(quoted, texts))}]"


def strings(value: object) -> tuple[str, ...] | None:
    """The strings of an array; None when it is none."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    return None


def _keys(header: str) -> list[str]:
    """The keys of a table's header; [] when it is not one."""
    try:
        value: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return []
    keys = []
    while value:
        (key,) = value
        keys.append(key)
        value = value[key]
    return keys
