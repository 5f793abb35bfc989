# SPDX-License-Identifier: Apache-2.0
"""What a dry run finds out about one demand."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..allocation import Cluster
from ..resource import Device, ResourceClaim
from .changes import Change
from .explain import Explanation
from .workload import Demand


@dataclass(frozen=True, slots=True)
class Placed:
    """A device that a demand gets."""

    claim: str
    request: str
    pool: str
    name: str
    device: Device | None  # None when the claim was allocated before and no slice has the device


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that cannot have the demand, all for the same reasons. Those of `explanation` are of the first one."""

    nodes: tuple[str, ...]
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class PodRemoval:
    """Pods of lower priority that the scheduler would remove to make room on a node."""

    node: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a demand: where it goes and what it gets there, or why it goes nowhere.

    `node` is the first of `fitting`, in the order of the nodes; the scheduler may prefer another one of them.
    `refused` has the nodes that come closest first; `changes` would each make it fit: both are only looked for when
    nothing fits. `defect` is set when the scheduler is at fault: by the rules of the API the answer is another one.

    Of a whole pod it is also known whether the API server `rejects` it, or a claim of it (its texts), what all nodes
    lack in one line (`summary`), what the scheduler says (`event`), and whom it would remove. `notes` say what of the
    pod is not considered. `state` is set for a pod that the cluster has on a node already: `running` or `ended`.
    `problems` say why the pod would get its devices and then not start.
    """

    demand: Demand
    fitting: tuple[str, ...] = ()
    placed: tuple[Placed, ...] = ()
    refused: tuple[Refused, ...] = ()
    changes: tuple[Change, ...] = ()
    defect: Change | None = None
    rejects: tuple[str, ...] = ()
    summary: str = ""
    event: str = ""
    removal: PodRemoval | None = None
    notes: tuple[str, ...] = ()
    state: str = ""
    problems: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it gets what it asks for and starts with it."""
        return self.node is not None and not self.problems

    @property
    def node(self) -> str | None:
        return self.fitting[0] if self.fitting else None


def placed_devices(claims: Iterable[ResourceClaim], cluster: Cluster) -> Iterator[Placed]:
    """What allocated claims have."""
    results = [(claim, one) for claim in claims if claim.allocation for one in claim.allocation.results]
    pools = {(one.driver, one.pool) for _, one in results}
    devices = {
        (one.driver, one.pool.name, device.name): device
        for one in cluster.slices
        if (one.driver, one.pool.name) in pools
        for device in one.devices
    }
    for claim, one in results:
        device = devices.get((one.driver, one.pool, one.device))
        yield Placed(str(claim.metadata), one.request, one.pool, one.device, device)
