# SPDX-License-Identifier: Apache-2.0
"""The body of an answer: a stored object, a list, or any JSON value, as the client wants it."""

from datetime import datetime
from typing import Any

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
        return render_value(tables.table(served, [record.object], meta, media, now, include))
    if media.form:
        return render_value(tables.partial(record.object, media.version))
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
        return render_value(tables.table(served, objects, meta, media, now, include))
    if media.form:
        items = [tables.partial(record.object, media.version) for record in page.records]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{media.version}"}
        return render_value({**kind, "metadata": meta, "items": items})
    head = encode({"kind": served.kind.list_kind, "apiVersion": served.api_version, "metadata": meta})
    bodies = b",".join(b"{" + record.body(served) for record in page.records)  # which do not repeat their kind
    return head[:-1] + b',"items":[' + bodies + b"]}\n"


def render_value(value: Any) -> bytes:
    """Any JSON value."""
    return encode(value) + b"\n"
