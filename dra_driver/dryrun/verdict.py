# SPDX-License-Identifier: Apache-2.0
"""The verdict of a dry run on one demand."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..kube.resource import Device, Quantity, ResourceClaim
from ..kube.resource.meta import empty
from ..scheduler.allocator import Cluster
from .changes import Suggestion
from .explain import Explanation
from .workload import Demand


@dataclass(frozen=True, slots=True)
class Placed:
    """A device that a demand gets, with its claim and request. `consumed` is what a share of the device consumes."""

    claim: str
    request: str
    pool: str
    name: str
    device: Device | None  # None when the claim was allocated before and no slice has the device
    consumed: Mapping[str, Quantity] = field(default_factory=empty)


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that cannot have the demand, for the same reasons. `explanation` has the numbers of the first node.

    For a whole pod, `one` and `many` are the texts for one of the nodes and for several.
    """

    nodes: tuple[str, ...]
    explanation: Explanation
    one: str = ""
    many: str = ""


@dataclass(frozen=True, slots=True)
class PodRemoval:
    """The pods of lower priority that the scheduler would preempt on a node."""

    node: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The node and the devices that a demand gets, or why it fits on no node.

    `node` is the first of `fitting`, in the order of the nodes. The scheduler may prefer another of these nodes.
    `refused` has the nodes that come closest first, and each of `changes` would make the demand fit. Both are empty if
    the demand fits. `defect` is set if the scheduler is at fault: the answer by the rules of the API differs.

    For a whole pod, `rejects` has the texts of the API server if it refuses the pod or one of its claims, `summary`
    what all nodes lack in one line, `event` the text of the scheduler's Event, and `removal` the pods that it would
    preempt. `notes` tell which parts of the pod are not evaluated. `state` is set for a pod that is on a node of the
    cluster already: `running` or `ended`. `problems` tell why the pod would get its devices and then not start.
    `unknown` has the facts that the verdict depends on and that are not known: the exit status is 3 then (`status`).
    `assumptions` tell what the node is taken to have, in words that go with "assuming" (`selection`).
    `error` says why the demand cannot be evaluated.
    """

    demand: Demand
    fitting: tuple[str, ...] = ()
    placed: tuple[Placed, ...] = ()
    refused: tuple[Refused, ...] = ()
    changes: tuple[Suggestion, ...] = ()
    defect: Suggestion | None = None
    rejects: tuple[str, ...] = ()
    summary: str = ""
    event: str = ""
    removal: PodRemoval | None = None
    notes: tuple[str, ...] = ()
    state: str = ""
    problems: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    error: str = ""

    @property
    def fits(self) -> bool:
        """Whether the demand gets what it asks for, and the pod would start."""
        return self.node is not None and not self.problems

    @property
    def node(self) -> str | None:
        """The first node that fits; None if there is none."""
        return self.fitting[0] if self.fitting else None


def placed_devices(claims: Iterable[ResourceClaim], cluster: Cluster) -> Iterator[Placed]:
    """The devices of those claims that are allocated."""
    results = [(claim, result) for claim in claims if claim.allocation for result in claim.allocation.results]
    pools = {(result.driver, result.pool) for _, result in results}
    devices = {
        (slice_.driver, slice_.pool.name, device.name): device
        for slice_ in cluster.slices
        if (slice_.driver, slice_.pool.name) in pools
        for device in slice_.devices
    }
    for claim, result in results:
        device = devices.get((result.driver, result.pool, result.device))
        yield Placed(str(claim.metadata), result.request, result.pool, result.device, device, result.consumed_capacity)
