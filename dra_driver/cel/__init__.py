# SPDX-License-Identifier: Apache-2.0
"""CEL device selectors, as kube-scheduler and kube-apiserver understand them.

`compile_selector` turns an expression into a `Selector` for one `Environment` (a Kubernetes release and its
feature gates); `Selector.matches` asks it about a device. Everything outside of that environment is a
`CompileError`, everything that has no answer for a device an `EvaluationError`.

An expression passes through four packages, each of which imports only those before it: `syntax` (text to tree),
`check` (types, and the cost in the worst case), `library` (the functions, each with the value type that it is about)
and `evaluate` (tree to closures). All of them use `types` and `errors`.
"""

from .check.environment import NEWEST, RELEASES, Environment
from .errors import CelError, CompileError, EvaluationError, Issue
from .evaluate.frame import COST_LIMIT
from .selector import MAX_BYTES, PublishedNames, Reads, Selector, compile_selector

__all__ = [
    "COST_LIMIT",
    "MAX_BYTES",
    "NEWEST",
    "RELEASES",
    "CelError",
    "CompileError",
    "Environment",
    "EvaluationError",
    "Issue",
    "PublishedNames",
    "Reads",
    "Selector",
    "compile_selector",
]
