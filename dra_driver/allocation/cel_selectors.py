# SPDX-License-Identifier: Apache-2.0
"""Selectors evaluated by `dra_driver.cel`, in the environment in which kube-scheduler evaluates them."""

from ..cel import Environment, compile_selector
from .features import Features
from .selectors import Predicate


def compile_cel(expression: str, features: Features) -> Predicate:
    """The compiled expression. Raises CompileError."""
    environment = Environment(
        kubernetes=features.release,
        consumable_capacity=features.consumable_capacity,
        list_type_attributes=features.list_attributes,
        stored=True,
    )
    return compile_selector(expression, environment)
