# SPDX-License-Identifier: Apache-2.0
"""What Kueue says about a workload."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..kube.resource import Quantity


@dataclass(frozen=True, slots=True)
class QueueCharge:
    """An amount of a resource, and for devices how it is computed."""

    resource: str
    amount: Quantity
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """The answer of Kueue for a workload: the charges, and why the quota is not enough (`reasons`, empty if it is).

    `flavors` are the chosen flavors by resource. `notes` tell what is not evaluated. Without `is_known`, it is not
    known whether Kueue admits the workload, and `reasons` say why.
    """

    workload: str
    queue: str
    cluster_queue: str = ""
    charges: tuple[QueueCharge, ...] = ()
    flavors: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_known: bool = True

    @property
    def admits(self) -> bool:
        """Whether Kueue admits the workload now."""
        return not self.reasons

    def document(self) -> dict[str, Any]:
        """The verdict as in JSON."""
        return {
            "workload": self.workload,
            "queue": self.queue,
            "clusterQueue": self.cluster_queue or None,
            "admits": self.admits if self.is_known else None,
            "charges": [
                {"resource": charge.resource, "amount": str(charge.amount), "reason": charge.reason or None}
                for charge in self.charges
            ],
            "flavors": [{"resource": resource, "flavor": flavor} for resource, flavor in self.flavors.items()],
            "reasons": list(self.reasons),
            "notes": list(self.notes),
        }

    @property
    def lines(self) -> Iterator[str]:
        """The verdict for people, without its first line."""
        if self.charges:
            amounts = (
                f"{charge.resource} {charge.amount}" + (f" ({charge.reason})" if charge.reason else "")
                for charge in self.charges
            )
            yield f"charges {', '.join(amounts)}"
        if self.flavors:
            yield f"flavors: {', '.join(dict.fromkeys(self.flavors.values()))}"
        yield from self.reasons
        yield from self.notes

    @property
    def headline(self) -> str:
        """The answer in a few words: `has quota`, `has no quota`, or `not known`."""
        if not self.is_known:
            return "not known"
        return "has quota" if self.admits else "has no quota"
