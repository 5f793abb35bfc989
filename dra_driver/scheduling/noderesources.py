# SPDX-License-Identifier: Apache-2.0
"""NodeResourcesFit: whether a node has what a pod requests (`pkg/scheduler/framework/plugins/noderesources`)."""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from .objects import Pod
from .outcome import Code, Refusal
from .resources import is_extended
from .snapshot import Site

_PLUGIN = "NodeResourcesFit"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a node has too little, in the units of `Amounts`: `pods` is the number of pods."""

    resource: str
    wanted: int
    used: int
    allocatable: int

    @property
    def free(self) -> int:
        return self.allocatable - self.used

    @property
    def reason(self) -> str:
        return "Too many pods" if self.resource == "pods" else f"Insufficient {self.resource}"

    @property
    def final(self) -> bool:
        """Whether the empty node would not have enough either. The number of pods is never counted so."""
        return self.resource != "pods" and self.wanted > self.allocatable


class Resources:
    """The node lacks resources. Those that a DeviceClass serves and the node has none of are left to the slices."""

    def __init__(self, pod: Pod, served: Container[str]) -> None:
        """`served` are the extended resources that DeviceClasses serve."""
        self._wanted = [(name, amount) for name, amount in sorted(pod.amounts.items()) if amount and name != "pods"]
        self._by_slices = frozenset(name for name, _ in self._wanted if is_extended(name) and name in served)

    def shortages(self, site: Site) -> Iterator[Shortage]:
        """What the node has too little of, in the scheduler's order."""
        allocatable, used = site.node.allocatable, site.used
        room = allocatable.get("pods", 0)
        if len(site.pods) + 1 > room:
            yield Shortage("pods", 1, len(site.pods), room)
        lacking = []
        for name, amount in self._wanted:
            there = allocatable.get(name, 0)
            if amount <= there - used.get(name, 0) or (not there and name in self._by_slices):
                continue
            lacking.append(Shortage(name, amount, used.get(name, 0), there))
        yield from sorted(lacking, key=lambda one: _ORDER.get(one.resource, len(_ORDER)))

    def refuses(self, site: Site) -> Refusal | None:
        lacking = tuple(self.shortages(site))
        if not lacking:
            return None
        code = Code.UNRESOLVABLE if any(one.final for one in lacking) else Code.UNSCHEDULABLE
        return Refusal(_PLUGIN, tuple(one.reason for one in lacking), code)


_ORDER = {"cpu": 0, "memory": 1, "ephemeral-storage": 2}
