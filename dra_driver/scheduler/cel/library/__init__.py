# SPDX-License-Identifier: Apache-2.0
"""The functions and macros of expressions. Each file has the functions on one type of value, and the type itself.

For each function, its file has what it does, what it costs at run time and at most, and the types of its arguments and
result. Which libraries an environment has follows k8s.io/apiserver `pkg/cel/environment/base.go` (additions of each
release) and k8s.io/dynamic-resource-allocation `cel/compile.go`.

This file has the functions on an authorizer (k8s.io/apiserver `pkg/cel/library/authz.go`). Device selectors have no
authorizer, so no call of these functions succeeds. They are declared because Kubernetes declares them: a call on a
value of type dyn compiles.
"""

import functools
from typing import Final

from ..declarations import CelLibrary, Cost, Declarations, Environment, method
from ..sizes import TRAVERSAL, CallEstimate, add, scaled
from ..types import BOOL, STRING, Type, TypeKind
from .containers import ALTERNATIVES, CONTAINERS, INCLUDES, OPTIONAL_LISTS, TWO_VARIABLES
from .conversions import CONVERSIONS, INT_DURATIONS
from .lists import COUNTED_TRANSFORMS, INCLUDES_IN_LISTS, LIST_TRANSFORMS, LISTS
from .named_formats import FORMAT
from .network import NETWORK
from .operators import OPERATORS
from .quantity import QUANTITIES, QUANTITY_SUMS
from .regex import REGEX
from .semver import SEMVERS
from .strings import AFFIXES, POSITIONS, STRINGS
from .time import TIME
from .values import cost_size, no_such_overload

_CHECK_COST: Final = 350_000
_LIST_COST: Final = 10
_REQUIREMENT_COST: Final = 50
_REQUIREMENTS: Final = 0.5
"""The number of requirements in a selector, for each code point."""

_CHECK: Final = Cost(lambda *_: _CHECK_COST, lambda *_: CallEstimate(_CHECK_COST))
_PARSE_SELECTOR: Final = Cost(
    lambda arguments, _: _selector_cost(cost_size(arguments[1])),
    lambda resource, selector: CallEstimate(_selector_cost(selector.size.high)),
)


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


_ON_RESOURCE: Final = ((_RESOURCE, STRING), _RESOURCE, _unavailable)
_OF_DECISION: Final = ((_DECISION,), STRING, _unavailable)

_AUTHORIZATION: Final = CelLibrary(
    method("path", ("authorizer_path", (_AUTHORIZER, STRING), _PATH, _unavailable)),
    method("group", ("authorizer_group", (_AUTHORIZER, STRING), _GROUP, _unavailable)),
    method(
        "serviceAccount",
        ("authorizer_serviceaccount", (_AUTHORIZER, STRING, STRING), _AUTHORIZER, _unavailable),
    ),
    method("resource", ("groupcheck_resource", (_GROUP, STRING), _RESOURCE, _unavailable)),
    method("subresource", ("resourcecheck_subresource", *_ON_RESOURCE)),
    method("namespace", ("resourcecheck_namespace", *_ON_RESOURCE)),
    method("name", ("resourcecheck_name", *_ON_RESOURCE)),
    method(
        "check",
        ("pathcheck_check", (_PATH, STRING), _DECISION, _unavailable),
        ("resourcecheck_check", (_RESOURCE, STRING), _DECISION, _unavailable),
        cost=_CHECK,
    ),
    method("errored", ("decision_errored", (_DECISION,), BOOL, _unavailable)),
    method("error", ("decision_error", *_OF_DECISION)),
    method("allowed", ("decision_allowed", (_DECISION,), BOOL, _unavailable)),
    method("reason", ("decision_reason", *_OF_DECISION)),
    method("fieldSelector", ("authorizer_fieldselector", *_ON_RESOURCE), cost=_PARSE_SELECTOR),
    method("labelSelector", ("authorizer_labelselector", *_ON_RESOURCE), cost=_PARSE_SELECTOR),
)

_LIBRARIES: Final[tuple[CelLibrary, ...]] = (
    OPERATORS,
    CONVERSIONS,
    INT_DURATIONS,
    CONTAINERS,
    *ALTERNATIVES,
    TIME,
    OPTIONAL_LISTS,
    STRINGS,
    *AFFIXES,
    *POSITIONS,
    REGEX,
    LISTS,
    LIST_TRANSFORMS,
    *COUNTED_TRANSFORMS,
    TWO_VARIABLES,
    QUANTITIES,
    *QUANTITY_SUMS,
    SEMVERS,
    NETWORK,
    FORMAT,
    _AUTHORIZATION,
)


@functools.cache
def registry_of(environment: Environment) -> Declarations:
    """The functions and macros of the environment."""
    libraries = (*_LIBRARIES, INCLUDES, INCLUDES_IN_LISTS) if environment.has_includes else _LIBRARIES
    return Declarations.of(libraries, environment.level, environment.release)
