# SPDX-License-Identifier: Apache-2.0
"""Answers in the representation that the client accepts: objects, lists, Tables, or metadata only.

kubectl requests Tables. The server does not offer protobuf and YAML; clients that prefer these also accept JSON.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDict

from .. import status
from ..groups.columns import NAME_AND_AGE
from ..kinds import Served
from ..listing import Page
from ..objects import Object, encode
from ..store import Record

JSON: Final = "application/json"
OFFERED: Final = (JSON, f"{JSON};stream=watch")
_META_GROUP: Final = "meta.k8s.io"
_FORMS: Final = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_VERSIONS: Final = ("v1", "v1beta1")


@dataclass(frozen=True, slots=True)
class Media:
    """The representation of an answer."""

    form: str = ""
    """`Table` or `PartialObjectMetadata`. Empty: the objects themselves."""
    version: str = "v1"
    """The version of the form's group, meta.k8s.io."""


PLAIN: Final = Media()


@lru_cache(maxsize=256)
def negotiate(header: str) -> Media:
    """Return the representation for an Accept header. Raises 406 if the server offers none of them."""
    if not header.strip():
        return PLAIN
    for term in header.split(","):
        kind, *rest = (part.strip() for part in term.split(";"))
        parameters = {key.strip(): value.strip() for key, _, value in (text.partition("=") for text in rest)}
        if kind.lower() not in (JSON, "application/*", "*/*"):
            continue
        form = parameters.get("as", "")
        if not form:
            return PLAIN
        known = form in _FORMS and parameters.get("g") == _META_GROUP and parameters.get("v") in _VERSIONS
        if known:
            return Media(form.removesuffix("List"), parameters["v"])
    raise status.not_acceptable(OFFERED)


def render_record(record: Record, served: Served, media: Media, now: datetime, include: str) -> bytes:
    """Return the body with one object."""
    if media.form == "Table":
        meta = {"resourceVersion": record.object["metadata"].get("resourceVersion", "")}
        return render_value(table(served, [record.object], meta, media, now, include))
    if media.form:
        return render_value(partial(record.object, media.version))
    return record.encoded(served) + b"\n"


def list_meta(page: Page) -> Object:
    """Return the metadata of a list."""
    meta: Object = {"resourceVersion": str(page.revision)}
    if page.token:
        meta["continue"] = page.token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return meta


def render_page(page: Page, served: Served, media: Media, now: datetime, include: str) -> bytes:
    """Return the body with a list."""
    meta = list_meta(page)
    if media.form == "Table":
        objects = (record.object for record in page.records)
        return render_value(table(served, objects, meta, media, now, include))
    if media.form:
        items = [partial(record.object, media.version) for record in page.records]
        kind = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{media.version}"}
        return render_value({**kind, "metadata": meta, "items": items})
    head = encode({"kind": served.kind.list_kind, "apiVersion": served.api_version, "metadata": meta})
    bodies = b",".join(b"{" + record.body(served) for record in page.records)  # items of a list have no kind
    return head[:-1] + b',"items":[' + bodies + b"]}\n"


def render_value(value: Any) -> bytes:
    """Return the body with a JSON value."""
    return encode(value) + b"\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """The HTTP status, the body, and headers besides Content-Type."""

    code: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def failure(error: status.RequestError) -> Reply:
    """Return the answer for an error."""
    retry = (error.details or {}).get("retryAfterSeconds")
    extra = {"Retry-After": str(retry)} if retry else {}
    return Reply(error.code, render_value(error.status), JSON, extra)


def headers(content_type: str, extra: Mapping[str, str], warnings: Sequence[str]) -> CIMultiDict[str]:
    """Return the headers of an answer, with warnings as in RFC 7234."""
    found = [("Audit-Id", str(uuid.uuid4())), ("Content-Type", content_type), *extra.items()]
    if "Cache-Control" not in extra:
        found.append(("Cache-Control", "no-cache, private"))
    found += [("Warning", f"299 - {json.dumps(text, ensure_ascii=False)}") for text in warnings]
    return CIMultiDict(found)


def response(reply: Reply, warnings: Sequence[str] = ()) -> web.Response:
    """Return the answer as an object of aiohttp."""
    found = headers(reply.content_type, reply.headers, warnings)
    return web.Response(body=reply.body, status=reply.code, headers=found)


def column_definitions(served: Served) -> list[Object]:
    """Return the definitions of the columns of a kind."""
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
    """Return the row of one object. `include` is the parameter includeObject."""
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
    """Return a Table. In a watch, only the first Table is `headed`, with definitions of columns."""
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
    """Return only the metadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }
