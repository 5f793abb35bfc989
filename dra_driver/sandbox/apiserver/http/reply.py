# SPDX-License-Identifier: Apache-2.0
"""A whole answer: what it says, its headers, and how it reaches the HTTP library."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from .. import status
from .negotiation import JSON
from .rendering import render_value

_BROWSERS: Final = ("curl", "Wget", "Mozilla/5.0")


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body, and headers besides Content-Type."""

    code: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def failure(request: web.BaseRequest, error: status.ApiError) -> Reply:
    """The Status of an error."""
    retry = (error.details or {}).get("retryAfterSeconds")
    extra = {"Retry-After": str(retry)} if retry else {}
    body = render_value(error.status)
    return Reply(error.code, indented(body) if wants_pretty(request) else body, JSON, extra)


def wants_pretty(request: web.BaseRequest) -> bool:
    """Whether the body is to be indented: asked for, or for human eyes."""
    given = request.query.get("pretty")
    if given is not None:
        return given not in ("0", "false")
    return request.headers.get("User-Agent", "").startswith(_BROWSERS)


def indented(body: bytes) -> bytes:
    """A JSON body for human eyes."""
    return json.dumps(json.loads(body), indent=2, ensure_ascii=False).encode()


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
