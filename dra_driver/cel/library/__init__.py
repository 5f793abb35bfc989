# SPDX-License-Identifier: Apache-2.0
"""The functions and macros of expressions: one library a file, with the value type that it is about.

A library declares for each function what it does, what it costs, and how the type checker sees it. Which libraries
an environment has follows k8s.io/apiserver `pkg/cel/environment/base.go` (what each release brought) and the
additions of k8s.io/dynamic-resource-allocation `cel/compile.go`."""

import functools
from typing import Final

from ..check.declarations import Library, Registry
from ..check.environment import Environment
from .authz import AUTHORIZATION
from .containers import CONTAINERS, INCLUDES, OPTIONAL_LISTS, OPTIONALS, SETS
from .conversions import CONVERSIONS
from .ip import CIDRS, IPS
from .lists import LIST_TRANSFORMS, LISTS
from .macros import BINDINGS, STANDARD, TWO_VARIABLES
from .named_formats import FORMAT
from .operators import ARITHMETIC, COMPARISON, LOGIC
from .quantity import QUANTITIES
from .regex import MATCHES, REGEX
from .semver import SEMVERS
from .strings import STRING_TESTS, STRINGS
from .time import TIME
from .url import URLS

_LIBRARIES: Final[tuple[Library, ...]] = (
    STANDARD,
    LOGIC,
    COMPARISON,
    ARITHMETIC,
    CONVERSIONS,
    CONTAINERS,
    STRING_TESTS,
    MATCHES,
    TIME,
    OPTIONALS,
    OPTIONAL_LISTS,
    BINDINGS,
    STRINGS,
    REGEX,
    LISTS,
    LIST_TRANSFORMS,
    SETS,
    TWO_VARIABLES,
    QUANTITIES,
    SEMVERS,
    IPS,
    CIDRS,
    URLS,
    FORMAT,
    AUTHORIZATION,
)


@functools.cache
def registry_of(environment: Environment) -> Registry:
    """The functions and macros of the environment."""
    libraries = (*_LIBRARIES, INCLUDES) if environment.has_includes else _LIBRARIES
    return Registry.of(libraries, environment.level, environment.release)
