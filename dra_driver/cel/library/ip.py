# SPDX-License-Identifier: Apache-2.0
"""IP addresses and networks, read and written as Go's net/netip does, and the functions on them.

Zones and IPv4-mapped IPv6 addresses are refused. Follows `ip.go` and `cidr.go` in k8s.io/apiserver `pkg/cel` and
`pkg/cel/library`."""

import functools
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..check.declarations import (
    TRAVERSAL,
    CallEstimate,
    Function,
    Implementation,
    Library,
    Operand,
    Overload,
    RuntimeCost,
    add,
    function,
    method,
    scaled,
    traversal,
)
from ..errors import ErrorValue
from ..types import BOOL, CIDR, INT, IP, STRING, Type
from . import costs
from .values import Extension, cost_size, no_such_overload, succeeds

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

    def equals(self, other: object) -> bool:
        if not isinstance(other, IPValue):
            raise no_such_overload()
        return self == other

    @property
    def cost_size(self) -> int:
        return self.address.max_prefixlen // 8

    @property
    def is_link_local_multicast(self) -> bool:
        """224.0.0.0/24, or multicast of link-local scope."""
        if isinstance(self.address, ipaddress.IPv4Address):
            return self.address in _LINK_LOCAL_GROUPS
        first = self.address.packed
        return first[0] == 0xFF and first[1] & 0x0F == 0x02

    @property
    def is_global_unicast(self) -> bool:
        """Whether it is neither unspecified, loopback, multicast, link-local nor broadcast; it may be private."""
        address = self.address
        special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
        if isinstance(address, ipaddress.IPv4Address):
            return not special and address != _BROADCAST
        return not special


@dataclass(frozen=True, slots=True)
class CIDRValue(Extension):
    """An address with the length of its network's prefix. The bits behind the prefix are kept."""

    address: Address
    bits: int
    cel_type = CIDR

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"

    def equals(self, other: object) -> bool:
        if not isinstance(other, CIDRValue):
            raise no_such_overload()
        return self == other

    @property
    def cost_size(self) -> int:
        return -(-self.bits // 8)

    @property
    def masked(self) -> "CIDRValue":
        """The network itself, with no bits behind the prefix."""
        network = ipaddress.ip_network((self.address, self.bits), strict=False)
        return CIDRValue(network.network_address, self.bits)

    def contains(self, address: Address) -> bool:
        """Whether the address is in the network."""
        network = ipaddress.ip_network((self.address, self.bits), strict=False)
        return address.version == network.version and address in network

    def covers(self, other: "CIDRValue") -> bool:
        """Whether the other network is in this one."""
        return self.bits <= other.bits and self.contains(other.address)


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> IPValue:
    """The address that `text` is. Raises ErrorValue when it is none."""
    return IPValue(_parse(text, "an IP address"))


@functools.lru_cache(maxsize=4096)
def parse_network(text: str) -> CIDRValue:
    """The network that `text` is. Raises ErrorValue when it is none."""
    address_text, slash, bits = text.rpartition("/")
    if not slash:
        raise ErrorValue("parse", f"{text!r} is not a network such as 10.0.0.0/8: it has no '/'")
    address = _parse(address_text, "a network: its first part is not an IP address")
    if not _BITS.fullmatch(bits) or int(bits) > address.max_prefixlen:
        raise ErrorValue("parse", f"{text!r} is not a network: {bits!r} is no prefix length")
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


IPS = Library(
    functions=(
        costs.parser("ip", "string_to_ip", IP, parse_address),
        costs.parser("isIP", "is_ip", BOOL, succeeds(parse_address)),
        function(
            "ip.isCanonical",
            "ip_is_canonical",
            (STRING,),
            BOOL,
            _is_canonical,
            cost=costs.rebuild_first,
            estimate=lambda text: CallEstimate(text.size.scaled(0.2)),
        ),
        function("string", "ip_to_string", (IP,), STRING, IPValue.__str__),
        method("family", "ip_family", (IP,), INT, lambda ip: ip.address.version),
        method("isUnspecified", "ip_is_unspecified", (IP,), BOOL, lambda ip: ip.address.is_unspecified),
        method("isLoopback", "ip_is_loopback", (IP,), BOOL, lambda ip: ip.address.is_loopback),
        method(
            "isLinkLocalMulticast", "ip_is_link_local_multicast", (IP,), BOOL, lambda ip: ip.is_link_local_multicast
        ),
        method("isLinkLocalUnicast", "ip_is_link_local_unicast", (IP,), BOOL, lambda ip: ip.address.is_link_local),
        method("isGlobalUnicast", "ip_is_global_unicast", (IP,), BOOL, lambda ip: ip.is_global_unicast),
    )
)


_ADDRESS_SIZE: Final = 16
"""Bytes of the longest address."""


def _contains_text(network: CIDRValue, text: str) -> bool:
    try:
        return network.contains(parse_address(text).address)
    except ErrorValue:
        raise no_such_overload("containsIP", network, text) from None  # not the parser's error, in Kubernetes either


def _contains_network_cost(parses: bool) -> RuntimeCost:
    def cost(arguments: Sequence[object], result: object) -> int:
        size = cost_size(arguments[0])
        parsing = costs.traversal(cost_size(arguments[1])) if parses else 0
        return costs.traversal(2 * size) + costs.traversal(size) + 1 + parsing

    return cost


def _contains_address_cost(parses: bool) -> RuntimeCost:
    def cost(arguments: Sequence[object], result: object) -> int:
        parsing = costs.traversal(cost_size(arguments[1])) if parses else 0
        return costs.traversal(2 * cost_size(arguments[0])) + parsing

    return cost


_ADDRESS: Final = scaled(2 * _ADDRESS_SIZE, TRAVERSAL)
_NETWORK: Final = _ADDRESS + scaled(_ADDRESS_SIZE, TRAVERSAL) + 1


def _contains(identifier: str, argument: Type, call: Implementation, cost: RuntimeCost, base: int) -> Overload:
    def estimate(network: Operand, other: Operand) -> CallEstimate:
        return CallEstimate(add(base, traversal(other)) if argument is STRING else base)

    return Overload(identifier, (CIDR, argument), BOOL, call, member=True, cost=cost, estimate=estimate)


CIDRS = Library(
    functions=(
        costs.parser("cidr", "string_to_cidr", CIDR, parse_network),
        costs.parser("isCIDR", "is_cidr", BOOL, succeeds(parse_network)),
        Function(
            "containsIP",
            (
                _contains(
                    "cidr_contains_ip_string", STRING, _contains_text, _contains_address_cost(parses=True), _ADDRESS
                ),
                _contains(
                    "cidr_contains_ip_ip",
                    IP,
                    lambda network, ip: network.contains(ip.address),
                    _contains_address_cost(parses=False),
                    _ADDRESS,
                ),
            ),
            cost=_contains_address_cost(parses=False),
        ),
        Function(
            "containsCIDR",
            (
                _contains(
                    "cidr_contains_cidr_string",
                    STRING,
                    lambda network, text: network.covers(parse_network(text)),
                    _contains_network_cost(parses=True),
                    _NETWORK,
                ),
                _contains("cidr_contains_cidr", CIDR, CIDRValue.covers, _contains_network_cost(parses=False), _NETWORK),
            ),
            cost=_contains_network_cost(parses=False),
        ),
        function("string", "cidr_to_string", (CIDR,), STRING, CIDRValue.__str__),
        method("ip", "cidr_ip", (CIDR,), IP, lambda network: IPValue(network.address)),
        method("masked", "cidr_masked", (CIDR,), CIDR, lambda network: network.masked),
        method("prefixLength", "cidr_prefix_length", (CIDR,), INT, lambda network: network.bits),
    )
)
