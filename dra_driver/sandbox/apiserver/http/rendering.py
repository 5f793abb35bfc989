# SPDX-License-Identifier: Apache-2.0
"""Answers in the representation that the client accepts: objects, lists, Tables, or metadata only.

kubectl requests Tables. The server offers protobuf for single objects of built-in kinds only, and no YAML. Clients that
prefer these also accept JSON.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from .. import status
from ..groups.columns import NAME_AND_AGE
from ..kinds import Served
from ..listing import ListPage
from ..objects import Object, encode, now
from ..store import StoredObject
from ..verbs.request import PROTOBUF, versioned

JSON: Final = "application/json"
_META_API: Final = "meta.k8s.io/v1"


def form_of(header: str) -> str:
    """Return the form of objects that an Accept header prefers: `Table`, `PartialObjectMetadata`, or empty.

    Other headers also get JSON, whatever they accept.
    """
    preferred = header.partition(",")[0]
    return next((form for form in ("Table", "PartialObjectMetadata") if f"as={form}" in preferred), "")


def prefers_protobuf(header: str) -> bool:
    """Return whether an Accept header prefers protobuf."""
    return header.partition(",")[0].strip() == PROTOBUF


def render_record(record: StoredObject, served: Served, form: str, whole: bool) -> bytes:
    """Return the body with one object. `whole`: rows of a Table have the whole object, not only its metadata."""
    if form == "Table":
        meta = {"resourceVersion": record.object["metadata"].get("resourceVersion", "")}
        return render_value(table(served, [record.object], meta, whole))
    if form:
        return render_value(partial(record.object))
    return record.encoded(served) + b"\n"


def list_meta(page: ListPage) -> Object:
    """Return the metadata of a list."""
    meta: Object = {"resourceVersion": str(page.revision)}
    if page.token:
        meta["continue"] = page.token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return meta


def render_page(page: ListPage, served: Served, form: str, whole: bool) -> bytes:
    """Return the body with a list."""
    meta = list_meta(page)
    if form == "Table":
        return render_value(table(served, (record.object for record in page.records), meta, whole))
    if form:
        items = [partial(record.object) for record in page.records]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": _META_API}
        return render_value({**kind, "metadata": meta, "items": items})
    head = encode({"kind": served.kind.list_kind, "apiVersion": served.api_version, "metadata": meta})
    bodies = b",".join(b"{" + record.body(served) for record in page.records)  # items of a list have no kind
    return head[:-1] + b',"items":[' + bodies + b"]}\n"


def render_value(value: Any) -> bytes:
    """Return the body with a JSON value."""
    return encode(value) + b"\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """The HTTP status, the body, and the seconds of the header Retry-After."""

    code: int
    body: bytes
    content_type: str = JSON
    retry_after: int = 0


def failure(error: status.RequestError) -> Reply:
    """Return the answer for an error."""
    return Reply(error.code, render_value(error.status), retry_after=(error.details or {}).get("retryAfterSeconds", 0))


def headers(content_type: str, warnings: Sequence[str]) -> CIMultiDict[str]:
    """Return the headers of an answer, with warnings as in RFC 7234."""
    found = [("Content-Type", content_type), ("Cache-Control", "no-cache, private")]
    found += [("Warning", f"299 - {json.dumps(text, ensure_ascii=False)}") for text in warnings]
    return CIMultiDict(found)


def response(reply: Reply, warnings: Sequence[str] = ()) -> web.Response:
    """Return the answer as an object of aiohttp."""
    found = headers(reply.content_type, warnings)
    if reply.retry_after:
        found["Retry-After"] = str(reply.retry_after)
    return web.Response(body=reply.body, status=reply.code, headers=found)


def table(served: Served, objects: Iterable[Object], meta: Object, whole: bool, *, headed: bool = True) -> Object:
    """Return a Table. In a watch, only the first Table is `headed`, with definitions of columns."""
    columns, moment = served.kind.columns or NAME_AND_AGE, now()
    definitions = [
        {"name": column.name, "type": column.type, "format": column.format, "priority": column.priority}
        for column in columns
    ]
    rows = [
        {
            "cells": [column.cell(obj, moment) for column in columns],
            "object": versioned(obj, served) if whole else partial(obj),
        }
        for obj in objects
    ]
    return {
        "kind": "Table",
        "apiVersion": _META_API,
        "metadata": meta,
        "columnDefinitions": definitions if headed else None,
        "rows": rows,
    }


def partial(obj: Object) -> Object:
    """Return only the metadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _META_API, "metadata": obj["metadata"]}
