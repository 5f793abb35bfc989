# SPDX-License-Identifier: Apache-2.0
"""Functions on URLs (k8s.io/apiserver `pkg/cel/library/urls.go`)."""

from collections.abc import Sequence

from .. import costs
from ..declarations import Function, Implementation, Library, Overload
from ..maps import TextMap
from ..operands import CallEstimate, Operand, traversal
from ..types import BOOL, STRING, URL, Type, list_of, map_of
from ..urls import URLError, URLValue, parse, parse_request


def _is_url(text: str) -> bool:
    try:
        parse_request(text)
    except URLError:
        return False
    return True


def _parse_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(traversal(arguments[0]), arguments[0].size)


def _query(url: URLValue) -> TextMap:
    return TextMap(url.parameters())


def _part(name: str, identifier: str, call: Implementation, result: Type = STRING) -> Function:
    return Function(name, (Overload(identifier, (URL,), result, call, member=True),))


URLS = Library(
    functions=(
        Function(
            "url",
            (Overload("string_to_url", (STRING,), URL, parse),),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
        Function("isURL", (Overload("is_url_string", (STRING,), BOOL, _is_url),)),
        _part("getScheme", "url_get_scheme", lambda url: url.scheme),
        _part("getHost", "url_get_host", lambda url: url.host),
        _part("getHostname", "url_get_hostname", lambda url: url.hostname),
        _part("getPort", "url_get_port", lambda url: url.port),
        _part("getEscapedPath", "url_get_escaped_path", lambda url: url.escaped_path),
        _part("getQuery", "url_get_query", _query, map_of(STRING, list_of(STRING))),
    )
)
