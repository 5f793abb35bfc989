# SPDX-License-Identifier: Apache-2.0
"""IP addresses and networks as CEL values, read and written as Go's net/netip does.

Zones and IPv4-mapped IPv6 addresses are refused. Follows k8s.io/apiserver `pkg/cel/ip.go` and `cidr.go`.
"""

import functools
import ipaddress
import re
from typing import Final

from .errors import Fault
from .scalars import Extension
from .types import CIDR, IP
from .values import no_such_overload

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_BITS: Final = re.compile(r"[0-9]|[1-9][0-9]{1,2}", re.ASCII)
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_LINK_LOCAL_GROUPS: Final = ipaddress.IPv4Network("224.0.0.0/24")


class IPValue(Extension):
    """An IP address."""

    __slots__ = ("address",)
    cel_type = IP

    def __init__(self, address: Address) -> None:
        self.address = address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IPValue) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)

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
        """Everything that is not of a special kind; private addresses count."""
        address = self.address
        special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
        if isinstance(address, ipaddress.IPv4Address):
            return not special and address != _BROADCAST
        return not special


class CIDRValue(Extension):
    """An address with the length of its network's prefix. The bits behind the prefix are kept."""

    __slots__ = ("address", "bits")
    cel_type = CIDR

    def __init__(self, address: Address, bits: int) -> None:
        self.address = address
        self.bits = bits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CIDRValue) and self.address == other.address and self.bits == other.bits

    def __hash__(self) -> int:
        return hash((self.address, self.bits))

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
    """The address that `text` is. Raises Fault when it is none."""
    return IPValue(_parse(text, "an IP address"))


@functools.lru_cache(maxsize=4096)
def parse_network(text: str) -> CIDRValue:
    """The network that `text` is. Raises Fault when it is none."""
    address_text, slash, bits = text.rpartition("/")
    if not slash:
        raise Fault("parse", f"{text!r} is not a network such as 10.0.0.0/8: it has no '/'")
    address = _parse(address_text, "a network: its first part is not an IP address")
    if not _BITS.fullmatch(bits) or int(bits) > address.max_prefixlen:
        raise Fault("parse", f"{text!r} is not a network: {bits!r} is no prefix length")
    return CIDRValue(address, int(bits))


def _parse(text: str, wanted: str) -> Address:
    if "%" in text:
        raise Fault("parse", f"{text!r} has a zone, which is not allowed")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise Fault("parse", f"{text!r} is not {wanted}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise Fault("parse", f"{text!r} is an IPv4-mapped IPv6 address, which is not allowed")
    return address
