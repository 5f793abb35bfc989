# SPDX-License-Identifier: Apache-2.0
"""IP addresses and networks (CIDR), and the functions on them.

Texts are parsed and written like in Go's net/netip. Zones and IPv4-mapped IPv6 addresses are refused. Follows `ip.go`
and `cidr.go` in k8s.io/apiserver `pkg/cel` and `pkg/cel/library`.
"""

import functools
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..check.declarations import Function, Library, Overload, Row, RuntimeCost, function, method
from ..check.estimate import TRAVERSAL, CallEstimate, Operand, add, scaled, traversal
from ..errors import ErrorValue
from ..types import BOOL, CIDR, INT, IP, STRING
from .values import Extension, cost_size, no_such_overload, parser, rebuild_first, succeeds, traversal_cost

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_BITS: Final = re.compile(r"[0-9]|[1-9][0-9]{1,2}", re.ASCII)
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_LINK_LOCAL_GROUPS: Final = ipaddress.IPv4Network("224.0.0.0/24")


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
    return IPValue(_parse(text, "an IP address"))


@functools.lru_cache(maxsize=4096)
def parse_network(text: str) -> CIDRValue:
    """Parse a network. Raises ErrorValue."""
    address_text, slash, bits = text.rpartition("/")
    if not slash:
        raise ErrorValue("parse", f"{text!r} is not a network such as 10.0.0.0/8: it has no '/'")
    address = _parse(address_text, "a network: its first part is not an IP address")
    if not _BITS.fullmatch(bits) or int(bits) > address.max_prefixlen:
        raise ErrorValue("parse", f"{text!r} is not a network: {bits!r} is not a prefix length")
    return CIDRValue(address, int(bits))


def _parse(text: str, wanted: str) -> Address:
    if "%" in text:
        raise ErrorValue("parse", f"{text!r} has a zone, which is not allowed")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ErrorValue("parse", f"{text!r} is not {wanted}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ErrorValue("parse", f"{text!r} is an IPv4-mapped IPv6 address, which is not allowed")
    return address


def _is_canonical(text: str) -> bool:
    return str(parse_address(text)) == text


def _test(name: str, identifier: str, holds: Callable[[IPValue], bool]) -> Function:
    return method(name, (identifier, (IP,), BOOL, holds))


IPS = Library(
    functions=(
        parser("ip", "string_to_ip", IP, parse_address),
        parser("isIP", "is_ip", BOOL, succeeds(parse_address)),
        function(
            "ip.isCanonical",
            ("ip_is_canonical", (STRING,), BOOL, _is_canonical),
            cost=rebuild_first,
            estimate=lambda text: CallEstimate(text.size.scaled(2 * TRAVERSAL)),
        ),
        function("string", ("ip_to_string", (IP,), STRING, IPValue.__str__)),
        method("family", ("ip_family", (IP,), INT, lambda ip: ip.address.version)),
        _test("isUnspecified", "ip_is_unspecified", lambda ip: ip.address.is_unspecified),
        _test("isLoopback", "ip_is_loopback", lambda ip: ip.address.is_loopback),
        _test("isLinkLocalMulticast", "ip_is_link_local_multicast", lambda ip: ip.is_link_local_multicast),
        _test("isLinkLocalUnicast", "ip_is_link_local_unicast", lambda ip: ip.address.is_link_local),
        _test("isGlobalUnicast", "ip_is_global_unicast", lambda ip: ip.is_global_unicast),
    )
)


_ADDRESS_SIZE: Final = 16
"""The number of bytes of the longest address."""


def _contains_text(network: CIDRValue, text: str) -> bool:
    try:
        return network.contains(parse_address(text).address)
    except ErrorValue:
        raise no_such_overload(
            "containsIP", network, text
        ) from None  # Kubernetes reports this error and not the one of the parser


def _address_cost(arguments: Sequence[object], result: object) -> int:
    return traversal_cost(2 * cost_size(arguments[0]))


def _network_cost(arguments: Sequence[object], result: object) -> int:
    size = cost_size(arguments[0])
    return traversal_cost(2 * size) + traversal_cost(size) + 1


_LARGEST_ADDRESS_COST: Final = scaled(2 * _ADDRESS_SIZE, TRAVERSAL)
_LARGEST_NETWORK_COST: Final = _LARGEST_ADDRESS_COST + scaled(_ADDRESS_SIZE, TRAVERSAL) + 1


def _contains(name: str, cost: RuntimeCost, largest: int, of_text: Row, of_value: Row) -> Function:
    """A test whether a network contains a text, which is parsed first, or a value. `largest` is the largest cost."""

    def parsing_cost(arguments: Sequence[object], result: object) -> int:
        return cost(arguments, result) + traversal_cost(cost_size(arguments[1]))

    def parsing_estimate(network: Operand, text: Operand) -> CallEstimate:
        return CallEstimate(add(largest, traversal(text)))

    parsing = replace(Overload(*of_text), member=True, cost=parsing_cost, estimate=parsing_estimate)
    return method(name, parsing, of_value, cost=cost, estimate=lambda network, other: CallEstimate(largest))


CIDRS = Library(
    functions=(
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
    )
)
