# SPDX-License-Identifier: Apache-2.0
"""Opaque JSON objects (`runtime.RawExtension`): parameters of a claim and data of a device status, with their text.

kube-apiserver keeps their bytes and compares them: in the allocation of a claim, another order of keys or `1.0` for `1`
is a change. The request decides which text is kept:

- create and update: the text in the body
- JSON Patch and merge patch: the text without white space, with `<`, `>` and `&` escaped (Go's encoding of raw JSON)
- strategic merge patch and server-side apply: keys in order, and numbers and strings encoded again
- protobuf: the bytes in the message
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from json.decoder import JSONObject  # type: ignore[attr-defined]  # a public name of CPython, without a stub
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, Final

from dra_driver.kube.resource.codec import GROUP

from .objects import Object, encode

DEFINITION: Final = "io.k8s.apimachinery.pkg.runtime.RawExtension"
"""The type of opaque objects in the published schemas."""
OPAQUE_KINDS: Final = frozenset(("DeviceClass", "ResourceClaim", "ResourceClaimTemplate"))
"""The kinds of resource.k8s.io with opaque objects."""

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\s+')
_ESCAPED: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}

_MARK: Final = "\x00opaque"
_MARKED: Final = re.compile(re.escape(json.dumps({_MARK: 0}, separators=(",", ":"))).replace("0\\}", r"(\d+)\}"))


class Opaque(dict[str, Any]):
    """An opaque object, and the JSON text that it stands for. It is never changed, except in a copy of `recoded`."""

    __slots__ = ("text",)

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


class _Decoder(json.JSONDecoder):
    """Parses every JSON object as an `Opaque`."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = _parse_object
        self.scan_once = py_make_scanner(self)


def _parse_object(text_and_end: tuple[str, int], *arguments: Any) -> tuple[Opaque, int]:
    text, begin = text_and_end
    value, end = JSONObject(text_and_end, *arguments)
    return Opaque(value, text[begin - 1 : end]), end


def has_opaque_objects(group: str, kind: str) -> bool:
    """Whether objects of a kind can have opaque objects. JSON of other kinds is parsed and encoded without their texts,
    which is many times as fast.
    """
    return group == GROUP and kind in OPAQUE_KINDS


def parse(body: bytes) -> Any:
    """Parse JSON in which all objects know their text. Raises ValueError."""
    return _Decoder().decode(body.decode())


def opaque(value: Any) -> Any:
    """Return the value of an opaque field, with its text."""
    if type(value) is Opaque and plain(value) == value:
        return Opaque(plain(value), value.text)
    return Opaque(value, encode(value).decode()) if isinstance(value, dict) else value


def plain(value: Opaque) -> Any:
    """Return the JSON value of an opaque object's text."""
    return json.loads(value.text)


def recoded(value: Any, form: Callable[[str], str]) -> Any:
    """Return a copy of a JSON value in which the texts of opaque objects have another form."""
    if type(value) is Opaque:
        return Opaque(json.loads(value.text), form(value.text))
    if isinstance(value, dict):
        return {key: recoded(item, form) if isinstance(item, (dict, list)) else item for key, item in value.items()}
    if isinstance(value, list):
        return [recoded(item, form) if isinstance(item, (dict, list)) else item for item in value]
    return value


def without_texts(value: Any) -> Any:
    """Return a copy of a JSON value in which opaque objects are ordinary objects."""
    if isinstance(value, dict):
        return {key: without_texts(item) for key, item in value.items()}
    return [without_texts(item) for item in value] if isinstance(value, list) else value


def texts(value: Any) -> Iterator[str]:
    """Yield the texts of all opaque objects in a JSON value, in order."""
    if type(value) is Opaque:
        yield value.text
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def identical(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal, and their opaque objects have the same texts."""
    return bool(first == second) and sorted(texts(first)) == sorted(texts(second))


def compact(text: str) -> str:
    """Return JSON text without white space and with the escapes of Go's encoder. The rest of it stays."""
    return _TOKEN.sub(lambda token: token[0].translate(_ESCAPED) if token[0][0] == '"' else "", text)


def encoded_anew(text: str) -> str:
    """Return the text that Go's encoder writes for the parsed JSON: keys in order, and one form for each value."""
    return _text_of(json.loads(text))


def _text_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text_of(key)}:{_text_of(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text_of, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)


def _number(value: float) -> str:
    """Return a float as Go's encoding/json does: with an exponent below 1e-6 and from 1e21 on."""
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        text = format(Decimal(repr(value)), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return re.sub(r"e([+-])0", r"e\1", repr(value))


def encode_with_texts(value: Object) -> bytes:
    """Return compact JSON with the texts of opaque objects."""
    found: list[str] = []

    def mark(item: Any) -> Any:
        if type(item) is Opaque:
            found.append(compact(item.text))
            return {_MARK: len(found) - 1}
        if isinstance(item, dict):
            return {key: mark(part) for key, part in item.items()}
        return [mark(part) for part in item] if isinstance(item, list) else item

    marked = encode(mark(value)).decode()
    return _MARKED.sub(lambda match: found[int(match[1])], marked).encode()
