# SPDX-License-Identifier: Apache-2.0
"""Messages that have a form of their own in JSON: quantities, times, and opaque objects, for example."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ..objects import encode, parse_timestamp, timestamp
from ..opaque import Opaque


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How JSON has the messages of a type."""

    read: Callable[[Any], Any]
    """Returns the JSON value of a message, or None if the message is unset.

    Raises ValueError, OverflowError or OSError if the message has no such value.
    """
    write: Callable[[Any], dict[str, Any]]
    """Returns the fields of the message for a JSON value."""


def _read_raw(text: bytes) -> Any:
    found = json.loads(text) if text else None
    return Opaque(found, text.decode()) if isinstance(found, dict) else found


def _write_raw(value: Any) -> bytes:
    return value.text.encode() if type(value) is Opaque else encode(value)


def _read_moment(message: Any) -> datetime | None:
    if not message.seconds and not message.nanos:
        return None
    return datetime.fromtimestamp(message.seconds, UTC).replace(microsecond=message.nanos // 1000)


def _read_time(message: Any) -> str | None:
    moment = _read_moment(message)
    return None if moment is None else timestamp(moment)


def _read_micro_time(message: Any) -> str | None:
    moment = _read_moment(message)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _write_time(value: str) -> dict[str, int]:
    moment = parse_timestamp(value)
    return {"seconds": int(moment.timestamp()), "nanos": moment.microsecond * 1000}


def _write_int_or_string(value: int | str) -> dict[str, Any]:
    return {"intVal": value} if isinstance(value, int) else {"type": 1, "strVal": value}


_LIST: Final = JsonForm(lambda message: list(message.items), lambda value: {"items": value})

FORMS: Final[Mapping[str, JsonForm]] = {
    "k8s.io.api.authentication.v1.ExtraValue": _LIST,
    "k8s.io.api.authorization.v1.ExtraValue": _LIST,
    "k8s.io.apimachinery.pkg.api.resource.Quantity": JsonForm(
        lambda message: message.string or "0", lambda value: {"string": value}
    ),
    "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": JsonForm(
        lambda message: _read_raw(message.Raw), lambda value: {"Raw": _write_raw(value)}
    ),
    "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime": JsonForm(_read_micro_time, _write_time),
    "k8s.io.apimachinery.pkg.apis.meta.v1.Time": JsonForm(_read_time, _write_time),
    "k8s.io.apimachinery.pkg.apis.meta.v1.Verbs": _LIST,
    "k8s.io.apimachinery.pkg.runtime.RawExtension": JsonForm(
        lambda message: _read_raw(message.raw), lambda value: {"raw": _write_raw(value)}
    ),
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": JsonForm(
        lambda message: message.strVal if message.type else message.intVal, _write_int_or_string
    ),
}
"""By the full names of the messages."""
