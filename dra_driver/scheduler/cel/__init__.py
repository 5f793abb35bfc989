# SPDX-License-Identifier: Apache-2.0
"""CEL device selectors, with the results that kube-scheduler and kube-apiserver compute.

`compile_selector` turns an expression into a `Selector` for one `Environment` (a Kubernetes release and its feature
gates). It raises `CompileError` if this environment does not accept the expression. `Selector.matches` evaluates the
expression for a device, and raises `EvaluationError` if the evaluation fails.

An expression passes through four stages:

1. `parse` turns the text into a tree, and expands macros.
2. `check` finds the types, and the overload of each call.
3. `estimate` computes the cost in the worst case.
4. `evaluate` turns the tree into closures, which are called for each device.

`library` has the functions that an expression can call, one file for each type of value: what the function does, the
types of its arguments and result, its cost, and the estimate of its cost. `declarations`, `closures` and `sizes` have
the forms in which a library says this. `selector` sends an expression through the stages, and `names` finds out which
attributes it reads. All of them use `tree`, `types` and `errors`. docs/explanation/cel.md follows one expression
through all stages.
"""

from ...kube.releases import RELEASES
from .closures import COST_LIMIT
from .declarations import NEWEST, Environment
from .errors import CelError, CelIssue, CompileError, EvaluationError
from .names import PublishedNames, Reads
from .selector import MAX_BYTES, Derivation, Selector, compile_derivation, compile_selector

__all__ = [
    "COST_LIMIT",
    "MAX_BYTES",
    "NEWEST",
    "RELEASES",
    "CelError",
    "CelIssue",
    "CompileError",
    "Derivation",
    "Environment",
    "EvaluationError",
    "PublishedNames",
    "Reads",
    "Selector",
    "compile_derivation",
    "compile_selector",
]
