# SPDX-License-Identifier: Apache-2.0
"""IP addresses, networks (CIDR) and URLs, and the functions on them.

Addresses and networks are parsed and written like in Go's net/netip. Zones and IPv4-mapped IPv6 addresses are refused.
Follows `ip.go` and `cidr.go` in k8s.io/apiserver `pkg/cel` and `pkg/cel/library`.

URLs are parsed and written like in Go's net/url. Kubernetes parses a URL twice: first as an absolute URL or path, like
in an HTTP request, and then again without its fragment. Follows net/url of Go 1.26, and k8s.io/apiserver
`pkg/cel/url.go` and `pkg/cel/library/urls.go`.
"""

import functools
import ipaddress
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..declarations import CelLibrary, Cost, Function, Overload, Row, RuntimeCost, function, method
from ..errors import ErrorValue
from ..sizes import TRAVERSAL, CallEstimate, add, scaled, traversal
from ..types import BOOL, CIDR, INT, IP, STRING, URL, list_of, map_of
from .formatting import quoted
from .values import (
    READ,
    Extension,
    LiteralMap,
    cost_size,
    no_such_overload,
    parser,
    rebuild_first,
    succeeds,
    traversal_cost,
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_BITS: Final = re.compile(r"[0-9]|[1-9][0-9]{1,2}", re.ASCII)
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_LINK_LOCAL_GROUPS: Final = ipaddress.IPv4Network("224.0.0.0/24")

_ADDRESS_SIZE: Final = 16
"""The number of bytes of the longest address."""

_LARGEST_ADDRESS_COST: Final = scaled(2 * _ADDRESS_SIZE, TRAVERSAL)
_LARGEST_NETWORK_COST: Final = _LARGEST_ADDRESS_COST + scaled(_ADDRESS_SIZE, TRAVERSAL) + 1

_UNRESERVED: Final = frozenset((string.ascii_letters + string.digits + "-_.~").encode())
_SUBDELIMITERS: Final = frozenset(b"!$&'()*+,;=")
# the characters that each part may contain without an escape
_IN_HOST: Final = _UNRESERVED | _SUBDELIMITERS | frozenset(b':[]<>"')
_IN_PATH: Final = _UNRESERVED | frozenset(b"$&+,/:;=@")
_IN_USER: Final = _UNRESERVED | frozenset(b"$&+,;=")
_IN_FRAGMENT: Final = _UNRESERVED | frozenset(b"$&+,/:;=?@!()*")
_LEFT_AS_WRITTEN: Final = _SUBDELIMITERS | frozenset(b":@[]%")
_IN_USERINFO: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", re.ASCII)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+\-.]*(?=:)", re.ASCII)
_PORT: Final = re.compile(r"(?::[0-9]*)?", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})|%.{0,2}", re.ASCII | re.DOTALL)
_STRICT_COLONS: Final = ("http", "https")


@dataclass(frozen=True, slots=True)
class IPValue(Extension):
    """An IP address."""

    address: Address
    cel_type = IP

    def __str__(self) -> str:
        return str(self.address)

    @property
    def cost_size(self) -> int:
        return self.address.max_prefixlen // 8

    @property
    def is_link_local_multicast(self) -> bool:
        """Whether it is in 224.0.0.0/24, or an IPv6 multicast address with link-local scope."""
        if isinstance(self.address, ipaddress.IPv4Address):
            return self.address in _LINK_LOCAL_GROUPS
        first = self.address.packed
        return first[0] == 0xFF and first[1] & 0x0F == 0x02

    @property
    def is_global_unicast(self) -> bool:
        """Whether it is not unspecified, loopback, multicast, link-local or broadcast. It may be private."""
        address = self.address
        special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
        if isinstance(address, ipaddress.IPv4Address):
            return not special and address != _BROADCAST
        return not special


@dataclass(frozen=True, slots=True)
class CIDRValue(Extension):
    """An address with the length of the prefix of its network. The bits after the prefix are kept."""

    address: Address
    bits: int
    cel_type = CIDR

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    @property
    def cost_size(self) -> int:
        return -(-self.bits // 8)

    @property
    def masked(self) -> "CIDRValue":
        """The network without the bits after the prefix."""
        return CIDRValue(self._network.network_address, self.bits)

    @property
    def _network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network((self.address, self.bits), strict=False)

    def contains(self, address: Address) -> bool:
        """Whether the address is in the network."""
        return address.version == self.address.version and address in self._network

    def covers(self, other: "CIDRValue") -> bool:
        """Whether the other network is in this one."""
        return self.bits <= other.bits and self.contains(other.address)


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> IPValue:
    """Parse an address. Raises ErrorValue."""
    return IPValue(_parse_ip(text, "an IP address"))


@functools.lru_cache(maxsize=4096)
def parse_network(text: str) -> CIDRValue:
    """Parse a network. Raises ErrorValue."""
    address_text, slash, bits = text.rpartition("/")
    if not slash:
        raise ErrorValue("parse", f"{text!r} is not a network such as 10.0.0.0/8: it has no '/'")
    address = _parse_ip(address_text, "a network: its first part is not an IP address")
    if not _BITS.fullmatch(bits) or int(bits) > address.max_prefixlen:
        raise ErrorValue("parse", f"{text!r} is not a network: {bits!r} is not a prefix length")
    return CIDRValue(address, int(bits))


def _parse_ip(text: str, wanted: str) -> Address:
    if "%" in text:
        raise ErrorValue("parse", f"{text!r} has a zone, which is not allowed")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ErrorValue("parse", f"{text!r} is not {wanted}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ErrorValue("parse", f"{text!r} is an IPv4-mapped IPv6 address, which is not allowed")
    return address


def _contains_text(network: CIDRValue, text: str) -> bool:
    try:
        return network.contains(parse_address(text).address)
    except ErrorValue:
        # Kubernetes reports this error and not the one of the parser.
        raise no_such_overload("containsIP", network, text) from None


def _address_cost(arguments: Sequence[object], result: object) -> int:
    return traversal_cost(2 * cost_size(arguments[0]))


def _network_cost(arguments: Sequence[object], result: object) -> int:
    size = cost_size(arguments[0])
    return traversal_cost(2 * size) + traversal_cost(size) + 1


def _contains(name: str, cost: RuntimeCost, largest: int, of_text: Row, of_value: Row) -> Function:
    """A test whether a network contains a text, which is parsed first, or a value. `largest` is the largest cost."""

    def parsing_cost(arguments: Sequence[object], result: object) -> int:
        return cost(arguments, result) + traversal_cost(cost_size(arguments[1]))

    parsing = Cost(parsing_cost, lambda network, text: CallEstimate(add(largest, traversal(text))))
    return method(
        name,
        Overload(*of_text, member=True, cost=parsing),
        of_value,
        cost=Cost(cost, lambda network, other: CallEstimate(largest)),
    )


class URLError(Exception):
    """The text is not a URL."""


@dataclass(frozen=True, slots=True, eq=False)
class URLValue(Extension):
    """A URL."""

    scheme: str = ""
    opaque: str = ""
    user: str | None = None
    host: str = ""
    host_omitted: bool = False
    path: str = ""
    question_mark: bool = False
    query: str = ""
    fragment: str = ""
    cel_type = URL

    @property
    def identity(self) -> object:
        return str(self)

    def __str__(self) -> str:
        written = f"{self.scheme}:" if self.scheme else ""
        if self.opaque:
            written += self.opaque
        else:
            written += self._authority()
            path = self.escaped_path
            if path and not path.startswith("/") and self.host:
                path = "/" + path
            if not written and ":" in path.partition("/")[0]:
                path = "./" + path
            written += path
        if self.question_mark or self.query:
            written += f"?{self.query}"
        return f"{written}#{self._escaped_fragment()}" if self.fragment else written

    def _authority(self) -> str:
        if not (self.host or self.user is not None or (self.path and self.scheme and not self.host_omitted)):
            return ""
        user = f"{self.user}@" if self.user is not None else ""
        return f"//{user}{_escaped(self.host.encode(errors='replace'), _IN_HOST)}"

    def _escaped_fragment(self) -> str:
        if _is_well_escaped(self.fragment, _IN_FRAGMENT):
            return self.fragment
        return _escaped(_unescaped(self.fragment), _IN_FRAGMENT)

    @property
    def escaped_path(self) -> str:
        """The path with escapes. The original escapes are kept if they are valid."""
        if _is_well_escaped(self.path, _IN_PATH):
            return self.path
        unescaped = _unescaped(self.path)
        return "*" if unescaped == b"*" else _escaped(unescaped, _IN_PATH)

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        return self._split_host()[0]

    @property
    def port(self) -> str:
        """The port, empty if there is none."""
        return self._split_host()[1]

    def _split_host(self) -> tuple[str, str]:
        host, colon, port = self.host.rpartition(":")
        if not colon or not _PORT.fullmatch(":" + port):
            host, port = self.host, ""
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        return host, port

    def parameters(self) -> dict[str, list[object]]:
        """The values of each key of the query. Invalid parts of the query are ignored."""
        found: dict[str, list[object]] = {}
        for pair in self.query.split("&"):
            if ";" in pair or not pair:
                continue
            key, _, value = pair.partition("=")
            try:
                name, text = (_unescaped(part.replace("+", " ")).decode(errors="replace") for part in (key, value))
            except URLError:
                continue
            found.setdefault(name, []).append(text)
        return found


@functools.lru_cache(maxsize=1024)
def parse_url(text: str) -> URLValue:
    """Parse a URL. Raises ErrorValue."""
    try:
        parse_request(text)
        before, _, fragment = text.partition("#")
        return _parse(before, fragment, is_request=False)
    except URLError as error:
        raise ErrorValue("parse", f"URL parse error during conversion from string: {error}") from None


def parse_request(text: str) -> None:
    """Check that `text` is an absolute URL or path. Raises URLError with the text of Go."""
    try:
        _parse(text, "", is_request=True)
    except URLError as error:
        raise URLError(f"parse {quoted(text)}: {error}") from None


def _parse(text: str, fragment: str, *, is_request: bool) -> URLValue:  # noqa: C901  # the grammar of URLs
    if _CONTROL.search(text):
        raise URLError("net/url: invalid control character in URL")
    if not text and is_request:
        raise URLError("empty url")
    _unescaped(fragment)
    if text == "*":
        return URLValue(path="*", fragment=fragment)
    if text.startswith(":"):
        raise URLError("missing protocol scheme")
    match = _SCHEME.match(text)
    scheme = match[0].lower() if match else ""
    rest, mark, query = text[match.end() + 1 if match else 0 :].partition("?")
    question_mark = bool(mark) and not query
    if not rest.startswith("/"):
        if scheme:
            return URLValue(scheme, rest, question_mark=question_mark, query=query, fragment=fragment)
        if is_request:
            raise URLError("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise URLError("first path segment in URL cannot contain colon")
    user: str | None = None
    host = ""
    host_omitted = False
    if rest.startswith("//") and (scheme or (not is_request and not rest.startswith("///"))):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        user, host = _parse_authority(scheme, authority)
    elif scheme and rest.startswith("/"):
        host_omitted = True
    _unescaped(rest)
    return URLValue(scheme, "", user, host, host_omitted, rest, question_mark, query, fragment)


def _parse_authority(scheme: str, authority: str) -> tuple[str | None, str]:
    userinfo, at, host_text = authority.rpartition("@")
    host = _parse_host(scheme, host_text)
    if not at:
        return None, host
    if not _IN_USERINFO.fullmatch(userinfo):
        raise URLError("net/url: invalid userinfo")
    name, colon, password = userinfo.partition(":")
    return colon.join(_escaped(_unescaped(part), _IN_USER) for part in ((name, password) if colon else (name,))), host


def _parse_host(scheme: str, host: str) -> str:
    opening = host.rfind("[")
    if opening > 0:
        raise URLError("invalid IP-literal")
    if opening == 0:
        return _parse_bracketed(host)
    colon = host.find(":") if scheme in _STRICT_COLONS else host.rfind(":")
    if colon >= 0:
        _check_port(host[colon:])
    return _unescaped_host(host)


def _parse_bracketed(host: str) -> str:
    closing = host.rfind("]")
    if closing < 0:
        raise URLError("missing ']' in host")
    _check_port(host[closing + 1 :])
    name, percent, zone = host[1:closing].partition("%25")
    address = _unescaped_host(name)
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise URLError(f"invalid host: {quoted(address)} is not an IPv6 address") from None
    if percent:
        if not zone:
            raise URLError("invalid host: zone must be a non-empty string")
        address += _unescaped(percent + zone).decode(errors="replace")
    return f"[{address}]{host[closing + 1 :]}"


def _check_port(text: str) -> None:
    if not _PORT.fullmatch(text):
        raise URLError(f"invalid port {quoted(text)} after host")


def _unescaped_host(text: str) -> str:
    """The host without escapes. Only characters that are not ASCII may be escaped in it."""
    for match in _ESCAPE.finditer(text):
        if match[1] and int(match[1], 16) < 0x80 and match[0] != "%25":
            raise URLError(f"invalid URL escape {quoted(match[0])}")
    for character in text:
        code = ord(character)
        if code < 0x80 and code not in _IN_HOST and character != "%":
            raise URLError(f"invalid character {quoted(character)} in host name")
    return _unescaped(text).decode(errors="replace")


def _unescaped(text: str) -> bytes:
    """The bytes of the text without escapes. Raises URLError for a `%` that does not start an escape."""
    parts: list[bytes] = []
    place = 0
    for match in _ESCAPE.finditer(text):
        if match[1] is None:
            raise URLError(f"invalid URL escape {quoted(match[0])}")
        parts += (text[place : match.start()].encode(errors="replace"), bytes.fromhex(match[1]))
        place = match.end()
    parts.append(text[place:].encode(errors="replace"))
    return b"".join(parts)


def _escaped(data: bytes, allowed: frozenset[int]) -> str:
    return "".join([chr(byte) if byte in allowed else f"%{byte:02X}" for byte in data])


def _is_well_escaped(text: str, allowed: frozenset[int]) -> bool:
    return all(byte in allowed or byte in _LEFT_AS_WRITTEN for byte in text.encode(errors="replace"))


def _query(url: URLValue) -> LiteralMap:
    query = LiteralMap()
    for name, values in url.parameters().items():
        query.insert(name, values)
    return query


NETWORK = CelLibrary(
    parser("ip", "string_to_ip", IP, parse_address),
    parser("isIP", "is_ip", BOOL, succeeds(parse_address)),
    function(
        "ip.isCanonical",
        ("ip_is_canonical", (STRING,), BOOL, lambda text: str(parse_address(text)) == text),
        cost=Cost(rebuild_first, lambda text: CallEstimate(text.size.scaled(2 * TRAVERSAL))),
    ),
    function("string", ("ip_to_string", (IP,), STRING, IPValue.__str__)),
    method("family", ("ip_family", (IP,), INT, lambda ip: ip.address.version)),
    method("isUnspecified", ("ip_is_unspecified", (IP,), BOOL, lambda ip: ip.address.is_unspecified)),
    method("isLoopback", ("ip_is_loopback", (IP,), BOOL, lambda ip: ip.address.is_loopback)),
    method("isLinkLocalMulticast", ("ip_is_link_local_multicast", (IP,), BOOL, lambda ip: ip.is_link_local_multicast)),
    method("isLinkLocalUnicast", ("ip_is_link_local_unicast", (IP,), BOOL, lambda ip: ip.address.is_link_local)),
    method("isGlobalUnicast", ("ip_is_global_unicast", (IP,), BOOL, lambda ip: ip.is_global_unicast)),
    parser("cidr", "string_to_cidr", CIDR, parse_network),
    parser("isCIDR", "is_cidr", BOOL, succeeds(parse_network)),
    _contains(
        "containsIP",
        _address_cost,
        _LARGEST_ADDRESS_COST,
        ("cidr_contains_ip_string", (CIDR, STRING), BOOL, _contains_text),
        ("cidr_contains_ip_ip", (CIDR, IP), BOOL, lambda network, ip: network.contains(ip.address)),
    ),
    _contains(
        "containsCIDR",
        _network_cost,
        _LARGEST_NETWORK_COST,
        (
            "cidr_contains_cidr_string",
            (CIDR, STRING),
            BOOL,
            lambda network, text: network.covers(parse_network(text)),
        ),
        ("cidr_contains_cidr", (CIDR, CIDR), BOOL, CIDRValue.covers),
    ),
    function("string", ("cidr_to_string", (CIDR,), STRING, CIDRValue.__str__)),
    method("ip", ("cidr_ip", (CIDR,), IP, lambda network: IPValue(network.address))),
    method("masked", ("cidr_masked", (CIDR,), CIDR, lambda network: network.masked)),
    method("prefixLength", ("cidr_prefix_length", (CIDR,), INT, lambda network: network.bits)),
    function("url", ("string_to_url", (STRING,), URL, parse_url), cost=READ),
    function("isURL", ("is_url_string", (STRING,), BOOL, succeeds(parse_request, URLError))),
    method("getScheme", ("url_get_scheme", (URL,), STRING, lambda url: url.scheme)),
    method("getHost", ("url_get_host", (URL,), STRING, lambda url: url.host)),
    method("getHostname", ("url_get_hostname", (URL,), STRING, lambda url: url.hostname)),
    method("getPort", ("url_get_port", (URL,), STRING, lambda url: url.port)),
    method("getEscapedPath", ("url_get_escaped_path", (URL,), STRING, lambda url: url.escaped_path)),
    method(
        "getQuery",
        ("url_get_query", (URL,), map_of(STRING, list_of(STRING)), _query),
    ),
)
