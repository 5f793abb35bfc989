# SPDX-License-Identifier: Apache-2.0
"""Event of the core group; events.k8s.io, which names the same things differently, is not served."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from ... import field_errors as errors
from ...field_errors import FieldError
from ...kinds import Column, Context, Strategy, text_at
from ...objects import Object, pick
from .. import columns
from ..columns import NAME


def from_stored(obj: Object, version: str) -> Object:
    """A stored event, which always says who reports."""
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
STRATEGY: Final = Strategy(default=set_defaults, validate=validate)
