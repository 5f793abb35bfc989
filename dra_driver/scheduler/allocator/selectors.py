# SPDX-License-Identifier: Apache-2.0
"""The devices that the CEL expressions of a class and a request select.

An expression reads few attributes, and many devices have equal values. Each expression is evaluated once for each
combination of the values that it reads. `compile_cel` makes an evaluator that answers as kube-scheduler does.
"""

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from ...kube.resource import Device
from ..cel import (
    CelError,
    CompileError,
    Derivation,
    Environment,
    EvaluationError,
    Reads,
    Selector,
    compile_derivation,
    compile_selector,
)
from .features import Features, Variant
from .pools import PoolView


@dataclass(frozen=True, slots=True)
class _Stable:
    """A selector as Kubernetes' stable allocator evaluates it: `device.allowMultipleAllocations` is always false."""

    selector: Selector

    @property
    def reads(self) -> Reads:
        return self.selector.reads

    def matches(self, driver: str, device: Device) -> bool:
        if device.allow_multiple_allocations:
            device = replace(device, allow_multiple_allocations=False)
        return self.selector.matches(driver, device)


Predicate = Selector | _Stable
"""A compiled expression."""


@functools.lru_cache(maxsize=1024)
def compile_cel(expression: str, features: Features) -> Predicate:
    """The compiled expression. Raises CompileError."""
    selector = compile_selector(expression, _environment(features))
    return _Stable(selector) if features.variant is Variant.STABLE else selector


@functools.lru_cache(maxsize=1024)
def compile_derived(expression: str, features: Features) -> Derivation:
    """The compiled expression of a derived attribute. Raises CompileError."""
    return compile_derivation(expression, _environment(features))


def _environment(features: Features) -> Environment:
    return Environment(
        kubernetes=features.release,
        consumable_capacity=features.consumable_capacity,
        list_type_attributes=features.list_attributes,
        stored=True,
    )


@dataclass(frozen=True, slots=True)
class Selectors:
    """The expressions that a device has to meet, those of the class first."""

    device_class: tuple[str, ...]
    request: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnmetSelector:
    """Selector `index` of the class or of the request is false, or cannot be evaluated (`error`)."""

    of_class: bool
    index: int
    expression: str
    error: CelError | None = None


Verdict = UnmetSelector | None
"""The selector that a device does not meet, or None if the device is selected."""


class Verdicts:
    """The verdicts of one list of selectors on devices."""

    def __init__(self, checks: Sequence[tuple[UnmetSelector, Predicate | CompileError]]) -> None:
        self._checks = checks
        self.reads = Reads()
        for _, check in checks:
            if not isinstance(check, CompileError):
                self.reads |= check.reads
        self._by_values: dict[Hashable, Verdict] = {}
        self._by_pool: dict[PoolView, list[Verdict]] = {}

    def of_pool(self, pool: PoolView) -> Sequence[Verdict]:
        """The verdict on each device of the pool."""
        if pool not in self._by_pool:
            kinds = pool.kinds(self.reads)
            verdicts = [self._of_kind(pool, kind, first) for kind, first in kinds.firsts.items()]
            self._by_pool[pool] = [verdicts[number] for number in kinds.numbers]
        return self._by_pool[pool]

    def _of_kind(self, pool: PoolView, kind: Hashable, first: int) -> Verdict:
        device = pool.devices[first]
        if first in pool.odd_devices:
            return self._judge(pool.driver, device)
        key = (pool.driver, kind)
        if key not in self._by_values:
            self._by_values[key] = self._judge(pool.driver, device)
        return self._by_values[key]

    def _judge(self, driver: str, device: Device) -> Verdict:
        for unmet, check in self._checks:
            if isinstance(check, CompileError):
                return replace(unmet, error=check)
            try:
                if not check.matches(driver, device):
                    return unmet
            except EvaluationError as error:
                return replace(unmet, error=error)
        return None


class SelectorVerdicts:
    """The verdicts of all selectors. An invalid expression is an error only when it is evaluated."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._verdicts: dict[Selectors, Verdicts] = {}

    def of(self, selectors: Selectors) -> Verdicts:
        """The verdicts of these selectors."""
        if selectors not in self._verdicts:
            self._verdicts[selectors] = Verdicts(
                [
                    (UnmetSelector(of_class, index, expression), self._compile(expression))
                    for of_class, expressions in ((True, selectors.device_class), (False, selectors.request))
                    for index, expression in enumerate(expressions)
                ]
            )
        return self._verdicts[selectors]

    def _compile(self, expression: str) -> Predicate | CompileError:
        try:
            return compile_cel(expression, self._features)
        except CompileError as error:
            return error
