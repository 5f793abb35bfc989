# SPDX-License-Identifier: Apache-2.0
"""The functions on an authorizer (k8s.io/apiserver `pkg/cel/library/authz.go`).

Device selectors have no authorizer, so no call of these ever succeeds; but the environment knows them, and what
calls one on a value of type dyn compiles.
"""

from collections.abc import Sequence
from typing import Final

from ..check.declarations import (
    TRAVERSAL,
    CallEstimate,
    EstimateCall,
    Function,
    Library,
    Operand,
    Overload,
    RuntimeCost,
    add,
    scaled,
)
from ..types import BOOL, STRING, Kind, Type
from . import costs
from .values import cost_size, no_such_overload

_CHECK_COST: Final = 350_000
_LIST_COST: Final = 10
_REQUIREMENT_COST: Final = 50
_REQUIREMENTS: Final = 0.5
"""Requirements in a selector, for each code point."""


def _type(name: str) -> Type:
    return Type(Kind.STRUCT, f"kubernetes.authorization.{name}")


_AUTHORIZER: Final = _type("Authorizer")
_PATH: Final = _type("PathCheck")
_GROUP: Final = _type("GroupCheck")
_RESOURCE: Final = _type("ResourceCheck")
_DECISION: Final = _type("Decision")


def _unavailable(*arguments: object) -> object:
    raise no_such_overload()


def _selector_cost(size: int) -> int:
    return add(_LIST_COST, scaled(size, TRAVERSAL), scaled(scaled(size, _REQUIREMENTS), _REQUIREMENT_COST))


def _parsing(arguments: Sequence[object], result: object) -> int:
    return _selector_cost(cost_size(arguments[1]))


def _parsing_estimate(resource: Operand, selector: Operand) -> CallEstimate:
    return CallEstimate(_selector_cost(selector.size.high))


def _function(
    name: str,
    *overloads: tuple[str, tuple[Type, ...], Type],
    cost: RuntimeCost | None = None,
    estimate: EstimateCall | None = None,
) -> Function:
    members = [
        Overload(identifier, parameters, result, _unavailable, member=True)
        for identifier, parameters, result in overloads
    ]
    return Function(name, tuple(members), cost=cost, estimate=estimate)


AUTHORIZATION = Library(
    functions=(
        _function("path", ("authorizer_path", (_AUTHORIZER, STRING), _PATH)),
        _function("group", ("authorizer_group", (_AUTHORIZER, STRING), _GROUP)),
        _function("serviceAccount", ("authorizer_serviceaccount", (_AUTHORIZER, STRING, STRING), _AUTHORIZER)),
        _function("resource", ("groupcheck_resource", (_GROUP, STRING), _RESOURCE)),
        _function("subresource", ("resourcecheck_subresource", (_RESOURCE, STRING), _RESOURCE)),
        _function("namespace", ("resourcecheck_namespace", (_RESOURCE, STRING), _RESOURCE)),
        _function("name", ("resourcecheck_name", (_RESOURCE, STRING), _RESOURCE)),
        _function(
            "check",
            ("pathcheck_check", (_PATH, STRING), _DECISION),
            ("resourcecheck_check", (_RESOURCE, STRING), _DECISION),
            cost=costs.fixed(_CHECK_COST),
            estimate=lambda *_: CallEstimate(_CHECK_COST),
        ),
        _function("errored", ("decision_errored", (_DECISION,), BOOL)),
        _function("error", ("decision_error", (_DECISION,), STRING)),
        _function("allowed", ("decision_allowed", (_DECISION,), BOOL)),
        _function("reason", ("decision_reason", (_DECISION,), STRING)),
        _function(
            "fieldSelector",
            ("authorizer_fieldselector", (_RESOURCE, STRING), _RESOURCE),
            cost=_parsing,
            estimate=_parsing_estimate,
        ),
        _function(
            "labelSelector",
            ("authorizer_labelselector", (_RESOURCE, STRING), _RESOURCE),
            cost=_parsing,
            estimate=_parsing_estimate,
        ),
    )
)
