# SPDX-License-Identifier: Apache-2.0
"""Functions on IP addresses (k8s.io/apiserver `pkg/cel/library/ip.go`)."""

from collections.abc import Sequence

from .. import costs
from ..addresses import IPValue, parse_address
from ..declarations import Function, Implementation, Library, Overload
from ..errors import Fault
from ..operands import CallEstimate, Operand, traversal
from ..types import BOOL, INT, IP, STRING, Type


def _is_ip(text: str) -> bool:
    try:
        parse_address(text)
    except Fault:
        return False
    return True


def _is_canonical(text: str) -> bool:
    return str(parse_address(text)) == text


def _parse_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(traversal(arguments[0]))


def _canonical_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(arguments[0].size.scaled(0.2))


def _member(name: str, identifier: str, result: Type, call: Implementation) -> Function:
    return Function(name, (Overload(identifier, (IP,), result, call, member=True),))


IPS = Library(
    functions=(
        Function(
            "ip",
            (Overload("string_to_ip", (STRING,), IP, parse_address, cost=costs.read_first, estimate=_parse_estimate),),
        ),
        Function(
            "isIP", (Overload("is_ip", (STRING,), BOOL, _is_ip),), cost=costs.read_first, estimate=_parse_estimate
        ),
        Function(
            "ip.isCanonical",
            (Overload("ip_is_canonical", (STRING,), BOOL, _is_canonical),),
            cost=costs.rebuild_first,
            estimate=_canonical_estimate,
        ),
        Function("string", (Overload("ip_to_string", (IP,), STRING, IPValue.__str__),)),
        _member("family", "ip_family", INT, lambda ip: ip.address.version),
        _member("isUnspecified", "ip_is_unspecified", BOOL, lambda ip: ip.address.is_unspecified),
        _member("isLoopback", "ip_is_loopback", BOOL, lambda ip: ip.address.is_loopback),
        _member("isLinkLocalMulticast", "ip_is_link_local_multicast", BOOL, lambda ip: ip.is_link_local_multicast),
        _member("isLinkLocalUnicast", "ip_is_link_local_unicast", BOOL, lambda ip: ip.address.is_link_local),
        _member("isGlobalUnicast", "ip_is_global_unicast", BOOL, lambda ip: ip.is_global_unicast),
    )
)
