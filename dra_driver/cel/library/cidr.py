# SPDX-License-Identifier: Apache-2.0
"""Functions on networks (k8s.io/apiserver `pkg/cel/library/cidr.go`)."""

from collections.abc import Sequence
from typing import Final

from .. import costs
from ..addresses import CIDRValue, IPValue, parse_address, parse_network
from ..declarations import EstimateCall, Function, Implementation, Library, Overload, RuntimeCost
from ..errors import Fault
from ..operands import TRAVERSAL, CallEstimate, Operand, traversal
from ..sizes import add, scaled
from ..types import BOOL, CIDR, INT, IP, STRING, Type
from ..values import cost_size, no_such_overload

_ADDRESS_SIZE: Final = 16
"""Bytes of the longest address."""


def _is_cidr(text: str) -> bool:
    try:
        parse_network(text)
    except Fault:
        return False
    return True


def _contains_text(network: CIDRValue, text: str) -> bool:
    try:
        return network.contains(parse_address(text).address)
    except Fault:
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


def _comparison(base: int, *, parses: bool) -> EstimateCall:
    def estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
        return CallEstimate(add(base, traversal(arguments[0])) if parses else base)

    return estimate


_ADDRESS: Final = scaled(2 * _ADDRESS_SIZE, TRAVERSAL)
_NETWORK: Final = _ADDRESS + scaled(_ADDRESS_SIZE, TRAVERSAL) + 1


def _parse_estimate(target: Operand | None, arguments: Sequence[Operand]) -> CallEstimate:
    return CallEstimate(traversal(arguments[0]))


def _contains(
    identifier: str,
    argument: Type,
    call: Implementation,
    cost: RuntimeCost,
    base: int,
) -> Overload:
    return Overload(
        identifier,
        (CIDR, argument),
        BOOL,
        call,
        member=True,
        cost=cost,
        estimate=_comparison(base, parses=argument is STRING),
    )


CIDRS = Library(
    functions=(
        Function(
            "cidr",
            (Overload("string_to_cidr", (STRING,), CIDR, parse_network),),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
        Function(
            "isCIDR",
            (Overload("is_cidr", (STRING,), BOOL, _is_cidr),),
            cost=costs.read_first,
            estimate=_parse_estimate,
        ),
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
        Function("string", (Overload("cidr_to_string", (CIDR,), STRING, CIDRValue.__str__),)),
        Function("ip", (Overload("cidr_ip", (CIDR,), IP, lambda network: IPValue(network.address), member=True),)),
        Function("masked", (Overload("cidr_masked", (CIDR,), CIDR, lambda network: network.masked, member=True),)),
        Function(
            "prefixLength", (Overload("cidr_prefix_length", (CIDR,), INT, lambda network: network.bits, member=True),)
        ),
    )
)
