# SPDX-License-Identifier: Apache-2.0
"""Which libraries an environment has.

Follows k8s.io/apiserver `pkg/cel/environment/base.go` (what each release brought) and the additions of
k8s.io/dynamic-resource-allocation `cel/compile.go`.
"""

import functools
from typing import Final

from .declarations import Library, Registry
from .environment import Environment
from .library.arithmetic import ARITHMETIC
from .library.authz import AUTHORIZATION
from .library.bindings import BINDINGS
from .library.cidr import CIDRS
from .library.comparison import COMPARISON
from .library.containers import CONTAINERS
from .library.conversions import CONVERSIONS
from .library.format import FORMAT
from .library.includes import INCLUDES
from .library.ip import IPS
from .library.list_transforms import LIST_TRANSFORMS
from .library.lists import LISTS
from .library.logic import LOGIC
from .library.macros import STANDARD, TWO_VARIABLES
from .library.optionals import OPTIONAL_LISTS, OPTIONALS
from .library.quantity import QUANTITIES
from .library.regex import MATCHES, REGEX
from .library.semver import SEMVERS
from .library.sets import SETS
from .library.strings import STRING_TESTS, STRINGS
from .library.time import TIME
from .library.url import URLS

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
