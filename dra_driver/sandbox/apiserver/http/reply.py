# SPDX-License-Identifier: Apache-2.0
"""A whole answer: what it says, its headers, and how it reaches the HTTP library."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from multidict import CIMultiDict

from .. import status
from .negotiation import JSON
from .rendering import render_value


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, body, and headers besides Content-Type."""

    code: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


def failure(error: status.ApiError) -> Reply:
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
