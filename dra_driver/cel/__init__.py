# SPDX-License-Identifier: Apache-2.0
"""CEL device selectors, with the results that kube-scheduler and kube-apiserver compute.

`compile_selector` turns an expression into a `Selector` for one `Environment` (a Kubernetes release and its feature
gates). It raises `CompileError` if this environment does not accept the expression. `Selector.matches` evaluates the
expression for a device, and raises `EvaluationError` if the evaluation fails.

An expression passes through four packages. Each of them imports only the earlier ones, and its `__init__` has the
function that the next stage calls:

1. `syntax` turns the text into a tree (`parse`).
2. `check` finds the types (`check`), and estimates the cost in the worst case (`estimate`).
3. `library` has the functions that an expression can call, one file for each type of value (`registry_of`).
4. `evaluate` turns the tree into closures (`compile_tree`).

All of them use `types` and `errors`.
"""

from .check.declarations import NEWEST, RELEASES, Environment
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
