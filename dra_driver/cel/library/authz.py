# SPDX-License-Identifier: Apache-2.0
"""The functions on an authorizer (k8s.io/apiserver `pkg/cel/library/authz.go`).

Device selectors have no authorizer, so no call of these ever succeeds; but the environment knows them, and what
calls one on a value of type dyn compiles.
"""

from collections.abc import Sequence
from typing import Final

from ..check.declarations import TRAVERSAL, CallEstimate, Function, Library, Operand, Overload, add, method, scaled
from ..types import BOOL, STRING, Type, TypeKind
from .values import cost_size, no_such_overload

_CHECK_COST: Final = 350_000
_LIST_COST: Final = 10
_REQUIREMENT_COST: Final = 50
_REQUIREMENTS: Final = 0.5
"""Requirements in a selector, for each code point."""


def _type(name: str) -> Type:
    return Type(TypeKind.STRUCT, f"kubernetes.authorization.{name}")


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


AUTHORIZATION = Library(
    functions=(
        method("path", "authorizer_path", (_AUTHORIZER, STRING), _PATH, _unavailable),
        method("group", "authorizer_group", (_AUTHORIZER, STRING), _GROUP, _unavailable),
        method("serviceAccount", "authorizer_serviceaccount", (_AUTHORIZER, STRING, STRING), _AUTHORIZER, _unavailable),
        method("resource", "groupcheck_resource", (_GROUP, STRING), _RESOURCE, _unavailable),
        method("subresource", "resourcecheck_subresource", (_RESOURCE, STRING), _RESOURCE, _unavailable),
        method("namespace", "resourcecheck_namespace", (_RESOURCE, STRING), _RESOURCE, _unavailable),
        method("name", "resourcecheck_name", (_RESOURCE, STRING), _RESOURCE, _unavailable),
        Function(
            "check",
            (
                Overload("pathcheck_check", (_PATH, STRING), _DECISION, _unavailable, member=True),
                Overload("resourcecheck_check", (_RESOURCE, STRING), _DECISION, _unavailable, member=True),
            ),
            cost=lambda *_: _CHECK_COST,
            estimate=lambda *_: CallEstimate(_CHECK_COST),
        ),
        method("errored", "decision_errored", (_DECISION,), BOOL, _unavailable),
        method("error", "decision_error", (_DECISION,), STRING, _unavailable),
        method("allowed", "decision_allowed", (_DECISION,), BOOL, _unavailable),
        method("reason", "decision_reason", (_DECISION,), STRING, _unavailable),
        method(
            "fieldSelector",
            "authorizer_fieldselector",
            (_RESOURCE, STRING),
            _RESOURCE,
            _unavailable,
            cost=_parsing,
            estimate=_parsing_estimate,
        ),
        method(
            "labelSelector",
            "authorizer_labelselector",
            (_RESOURCE, STRING),
            _RESOURCE,
            _unavailable,
            cost=_parsing,
            estimate=_parsing_estimate,
        ),
    )
)
