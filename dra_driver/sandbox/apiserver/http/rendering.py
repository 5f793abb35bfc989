# SPDX-License-Identifier: Apache-2.0
"""The body of an answer: a stored object, a list, or any JSON value, as the client wants it."""

import json
from datetime import datetime
from typing import Any

import yaml

from ..kinds import Served
from ..objects import Object, encode
from ..storage.listing import Page
from ..storage.store import Record
from . import tables
from .negotiation import Media


def render_record(record: Record, served: Served, media: Media, now: datetime, include: str) -> bytes:
    """One object."""
    if media.form == "Table":
        meta = {"resourceVersion": record.object["metadata"].get("resourceVersion", "")}
        return render_value(tables.table(served, [record.object], meta, media, now, include), media)
    if media.form:
        return render_value(tables.partial(record.object, media.version), media)
    if media.yaml:
        return render_value(json.loads(record.encoded(served)), media)
    return record.encoded(served) + b"\n"


def list_meta(page: Page) -> Object:
    """The metadata of a list."""
    meta: Object = {"resourceVersion": str(page.revision)}
    if page.token:
        meta["continue"] = page.token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return meta


def render_page(page: Page, served: Served, media: Media, now: datetime, include: str) -> bytes:
    """A list of objects."""
    meta = list_meta(page)
    if media.form == "Table":
        objects = (record.object for record in page.records)
        return render_value(tables.table(served, objects, meta, media, now, include), media)
    if media.form:
        return render_value(tables.partial_list(page.records, meta, media.version), media)
    head = encode({"kind": served.kind.list_kind, "apiVersion": served.api_version, "metadata": meta})
    items = b",".join(b"{" + record.body(served) for record in page.records)  # which do not repeat their kind
    body = head[:-1] + b',"items":[' + items + b"]}"
    return render_value(json.loads(body), media) if media.yaml else body + b"\n"


def render_value(value: Any, media: Media, *, pretty: bool = False) -> bytes:
    """Any JSON value."""
    if media.yaml:
        text: str = yaml.safe_dump(value, default_flow_style=False, allow_unicode=True)
        return text.encode()
    if pretty:
        return json.dumps(value, indent=2, ensure_ascii=False).encode()
    return encode(value) + b"\n"
