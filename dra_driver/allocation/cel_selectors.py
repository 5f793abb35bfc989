# SPDX-License-Identifier: Apache-2.0
"""Selectors evaluated by `dra_driver.cel`, in the environment in which kube-scheduler evaluates them."""

from dataclasses import dataclass, replace

from ..cel import Environment, Reads, compile_selector
from ..resource import Device
from .features import Features, Variant
from .selectors import Predicate


def compile_cel(expression: str, features: Features) -> Predicate:
    """The compiled expression. Raises CompileError."""
    environment = Environment(
        kubernetes=features.release,
        consumable_capacity=features.consumable_capacity,
        list_type_attributes=features.list_attributes,
        stored=True,
    )
    selector = compile_selector(expression, environment)
    return _Stable(selector) if features.variant is Variant.STABLE else selector


@dataclass(frozen=True, slots=True)
class _Stable:
    """A selector as Kubernetes' stable allocator evaluates it: `device.allowMultipleAllocations` is always false."""

    selector: Predicate

    @property
    def reads(self) -> Reads:
        return self.selector.reads

    def matches(self, driver: str, device: Device) -> bool:
        if device.allow_multiple_allocations:
            device = replace(device, allow_multiple_allocations=False)
        return self.selector.matches(driver, device)
