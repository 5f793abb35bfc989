# SPDX-License-Identifier: Apache-2.0
"""Answers, as the client wants them: an object, a list, rows of a Table, or metadata only, with status and headers."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from .. import status
from ..groups.columns import NAME_AND_AGE
from ..kinds import Served
from ..objects import Object, encode
from ..storage.listing import Page
from ..storage.store import Record
from .negotiation import JSON, Media


def render_record(record: Record, served: Served, media: Media, now: datetime, include: str) -> bytes:
    """One object."""
    if media.form == "Table":
        meta = {"resourceVersion": record.object["metadata"].get("resourceVersion", "")}
        return render_value(table(served, [record.object], meta, media, now, include))
    if media.form:
        return render_value(partial(record.object, media.version))
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
        return render_value(table(served, objects, meta, media, now, include))
    if media.form:
        items = [partial(record.object, media.version) for record in page.records]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{media.version}"}
        return render_value({**kind, "metadata": meta, "items": items})
    head = encode({"kind": served.kind.list_kind, "apiVersion": served.api_version, "metadata": meta})
    bodies = b",".join(b"{" + record.body(served) for record in page.records)  # which do not repeat their kind
    return head[:-1] + b',"items":[' + bodies + b"]}\n"


def render_value(value: Any) -> bytes:
    """Any JSON value."""
    return encode(value) + b"\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body, and headers besides Content-Type."""

    code: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def failure(error: status.RequestError) -> Reply:
    """The Status of an error."""
    retry = (error.details or {}).get("retryAfterSeconds")
    extra = {"Retry-After": str(retry)} if retry else {}
    return Reply(error.code, render_value(error.status), JSON, extra)


def headers(content_type: str, extra: Mapping[str, str], warnings: Sequence[str]) -> CIMultiDict[str]:
    """The headers of an answer; warnings as RFC 7234 has them."""
    found = [("Audit-Id", str(uuid.uuid4())), ("Content-Type", content_type), *extra.items()]
    if "Cache-Control" not in extra:
        found.append(("Cache-Control", "no-cache, private"))
    found += [("Warning", f"299 - {json.dumps(text, ensure_ascii=False)}") for text in warnings]
    return CIMultiDict(found)


def response(reply: Reply, warnings: Sequence[str] = ()) -> web.Response:
    """The answer for the HTTP library."""
    found = headers(reply.content_type, reply.headers, warnings)
    return web.Response(body=reply.body, status=reply.code, headers=found)


def column_definitions(served: Served) -> list[Object]:
    """What the columns of a kind are."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in served.columns or NAME_AND_AGE
    ]


def row(served: Served, obj: Object, now: datetime, include: str, version: str) -> Object:
    """The row of one object; `include` is the includeObject parameter."""
    cells = [column.cell(obj, now) for column in served.columns or NAME_AND_AGE]
    result: Object = {"cells": cells}
    if include == "None":
        result["object"] = None
    elif include == "Object":
        converted = served.kind.from_stored(obj, served.version)
        result["object"] = {"kind": served.kind.name, "apiVersion": served.api_version, **converted}
    else:
        result["object"] = partial(obj, version)
    return result


def table(
    served: Served,
    objects: Iterable[Object],
    meta: Object,
    media: Media,
    now: datetime,
    include: str,
    *,
    headed: bool = True,
) -> Object:
    """A Table; without a head the columns are those of an earlier one (in a watch)."""
    rows = [row(served, obj, now, include, media.version) for obj in objects]
    definitions: Any = column_definitions(served) if headed else None
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{media.version}",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def partial(obj: Object, version: str) -> Object:
    """An object's metadata only."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }
