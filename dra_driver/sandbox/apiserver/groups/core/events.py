# SPDX-License-Identifier: Apache-2.0
"""Event: one kind in two groups. Objects are stored in the form of core/v1.

events.k8s.io/v1 names the same things differently, and validates more strictly.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from ... import field_errors as errors
from ...field_errors import FieldError
from ...kinds import Column, Context, Strategy, text_at
from ...objects import Object, pick
from .. import columns
from ..columns import NAME

_NEW_TO_OLD: Final = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_OLD_TO_NEW: Final = {old: new for new, old in _NEW_TO_OLD.items()}
_TYPES: Final = ("Normal", "Warning")


def to_stored(obj: Object, version: str) -> Object:
    """An events.k8s.io event in core/v1's form."""
    return {_NEW_TO_OLD.get(field, field): value for field, value in obj.items()}


def from_stored(obj: Object, version: str) -> Object:
    """A stored event in the form of events.k8s.io."""
    return {_OLD_TO_NEW.get(field, field): value for field, value in obj.items()}


def core_from_stored(obj: Object, version: str) -> Object:
    """A stored event in the form of core/v1, which always says who reports."""
    return {"reportingComponent": "", "reportingInstance": "", **obj}


def set_defaults(obj: Object, context: Context) -> None:
    """Fields that clients and columns count on."""
    obj.setdefault("involvedObject", {})
    obj.setdefault("source", {})


def validate(new: Object, old: Object | None, context: Context) -> Iterator[FieldError]:
    """What is wrong with an event of the core group."""
    involved = pick(new, "involvedObject", "namespace") or ""
    namespace = new["metadata"].get("namespace", "")
    if involved != namespace and not (not involved and namespace in ("default", "kube-system")):
        yield errors.invalid("involvedObject.namespace", involved, "does not match event.namespace")


def validate_new(new: Object, old: Object | None, context: Context) -> Iterator[FieldError]:
    """What is wrong with an event of events.k8s.io."""
    yield from validate(new, old, context)
    if old is not None:
        return
    if not new.get("eventTime"):
        yield errors.required("eventTime")
    for field, shown in (("reportingComponent", "reportingController"), ("reportingInstance", "reportingInstance")):
        if not new.get(field):
            yield errors.required(shown)
    for field in ("action", "reason"):
        if not new.get(field):
            yield errors.required(field)
    if new.get("type") not in _TYPES:
        yield errors.invalid("type", new.get("type", ""), f"has invalid value: {new.get('type', '')}")


def _last_seen(event: Object, now: datetime) -> Any:
    series = pick(event, "series", "lastObservedTime")
    return columns.since(series or event.get("lastTimestamp") or event.get("eventTime"), now)


def _first_seen(event: Object, now: datetime) -> Any:
    return columns.since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _object(event: Object) -> str:
    involved = event.get("involvedObject") or {}
    name = involved.get("name", "")
    return f"{involved.get('kind', '').lower()}/{name}" if name else involved.get("kind", "").lower()


def _source(event: Object) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent", "")
    host = source.get("host") or event.get("reportingInstance", "")
    return f"{component}, {host}" if host else component


COLUMNS: Final[tuple[Column, ...]] = (
    Column("Last Seen", _last_seen),
    columns.text("Type", "type"),
    columns.text("Reason", "reason"),
    columns.made("Object", _object),
    columns.text("Subobject", "involvedObject", "fieldPath", wide=True),
    columns.made("Source", _source, wide=True),
    columns.made("Message", lambda event: str(event.get("message", "")).strip()),
    Column("First Seen", _first_seen, priority=1),
    columns.made("Count", lambda event: pick(event, "series", "count") or event.get("count") or 1, wide=True),
    Column("Name", NAME.cell, priority=1, format="name"),
)
SELECTORS: Final = {
    **{
        f"involvedObject.{field}": text_at("involvedObject", field)
        for field in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": text_at("reason"),
    "reportingComponent": text_at("reportingComponent"),
    "source": text_at("source", "component"),
    "type": text_at("type"),
}
NEW_SELECTORS: Final = {
    **{
        f"regarding.{field}": text_at("involvedObject", field)
        for field in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": text_at("reason"),
    "reportingController": text_at("reportingComponent"),
    "type": text_at("type"),
}
STRATEGY: Final = Strategy(default=set_defaults, validate=validate, create_on_update=True)
NEW_STRATEGY: Final = Strategy(default=set_defaults, validate=validate_new, create_on_update=True)
