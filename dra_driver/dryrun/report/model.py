# SPDX-License-Identifier: Apache-2.0
"""All results of a dry run, in one value, from which each format is printed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...gpu.picture import Claims, NodePicture
from ...kube.resource import ResourceClaim
from ...kube.resource.codec import Decoded
from ...kube.resource.meta import empty
from ...scheduler.allocator import Cluster, Features
from ...scheduler.allocator.outcome import AllocationError
from ..queueverdict import QueueVerdict
from ..replicas import Replicas
from ..status import Note
from ..stock import DeviceCount
from ..verdict import Placed, Verdict
from .picture import DeviceKey, node_picture


@dataclass(frozen=True, slots=True)
class Item:
    """A device that a demand gets, and its driver (empty if no slice has the device)."""

    placed: Placed
    driver: str


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """A verdict, and the GPUs of the node of the demand. If the demand fits nowhere, it is the closest node."""

    verdict: Verdict
    items: tuple[Item, ...] = ()
    picture: NodePicture | None = None

    @property
    def shows_slices(self) -> bool:
        """Whether memory slices matter: the demand gets some, or the closest node has some."""
        if self.picture is None or self.verdict.node is None:
            return self.picture is not None and self.picture.divided
        return any(gpu.slices and gpu.proposed for gpu in self.picture.gpus)


@dataclass(frozen=True, slots=True)
class Report:
    """All answers of a run, in the order of the demands, and their basis: the source of the objects, their numbers, and
    the Kubernetes release.

    `claims` is the number of claims that hold devices. `assumptions` are the simulated changes, in words. `notes` tell
    which parts of the pods are not evaluated. `asked` tells when, by which command and for which files. `unknown` are
    the notes about what was not evaluated, those on single demands included, and `errors` those about wrong objects.
    `leftover` has the kinds of devices of which the demands leave fewer. `replicas` is set if copies of the only demand
    were counted, and `queues` has what Kueue says. `fits` is the answer to all of it together.
    """

    answers: tuple[ReportAnswer, ...]
    fits: bool
    where: str
    release: str
    nodes: int
    slices: int
    devices: int
    claims: int
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    asked: Mapping[str, str] = field(default_factory=empty)
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    leftover: tuple[DeviceCount, ...] = ()
    replicas: Replicas | None = None
    queues: tuple[QueueVerdict, ...] = ()

    @staticmethod
    def of(verdicts: Iterable[Verdict], objects: Sequence[Decoded], where: str, features: Features) -> "Report":
        """The report on `verdicts`, which `evaluate` gave for the same objects and features."""
        cluster = Cluster.of(objects)
        answers = tuple(_answers(verdicts, cluster, features))
        return Report(
            answers,
            all(answer.verdict.fits for answer in answers),
            where,
            features.release,
            len(cluster.nodes),
            len(cluster.slices),
            sum(len(slice_.devices) for slice_ in cluster.slices),
            sum(claim.allocation is not None for claim in cluster.claims),
        )


def joined(answers: Iterable[ReportAnswer]) -> Iterator[ReportAnswer]:
    """The answers, with one for consecutive pods of a workload that do not fit for the same reasons. Its demand has a
    name for all of them: `Deployment web, pod 3 of 60, and 57 more pods`.
    """
    runs: list[list[ReportAnswer]] = []
    for answer in answers:
        if runs and _are_alike(runs[-1][0].verdict, answer.verdict):
            runs[-1].append(answer)
        else:
            runs.append([answer])
    for first, *others in runs:
        if not others:
            yield first
            continue
        pods = f"{len(others)} more pod{'s' if len(others) > 1 else ''}"
        demand = replace(first.verdict.demand, name=f"{first.verdict.demand.name}, and {pods}")
        yield replace(first, verdict=replace(first.verdict, demand=demand))


def _are_alike(first: Verdict, second: Verdict) -> bool:
    """Whether two pods of one workload do not fit for the same reasons."""
    demand = first.demand
    if not demand.workload or demand.daemon_node or demand.workload != second.demand.workload:
        return False
    return first.node is None and replace(second, demand=demand) == first


def _answers(verdicts: Iterable[Verdict], cluster: Cluster, features: Features) -> Iterable[ReportAnswer]:
    drivers = _drivers(cluster)
    held = _held(cluster.claims)
    for verdict in verdicts:
        items = tuple(Item(placed, drivers.get(id(placed.device), "")) for placed in verdict.placed)
        proposed: dict[DeviceKey, Claims] = defaultdict(tuple)
        for item in items:
            proposed[item.driver, item.placed.pool, item.placed.name] += (item.placed.claim,)
        yield ReportAnswer(verdict, items, _picture(verdict, cluster, features, held, proposed))
        if verdict.demand.stage:  # its devices are free again for the demands that follow
            continue
        for key, claims in proposed.items():  # for the demands that follow they are taken
            held[key] += claims


def _picture(
    verdict: Verdict,
    cluster: Cluster,
    features: Features,
    held: Mapping[DeviceKey, Claims],
    proposed: Mapping[DeviceKey, Claims],
) -> NodePicture | None:
    name = verdict.node or next((refused.nodes[0] for refused in verdict.refused if refused.explanation.requests), None)
    node = cluster.node_by_name.get(name) if name is not None else None
    if node is None:
        return None
    try:
        picture = node_picture(cluster, features, node, held, proposed)
    except AllocationError:  # it is what the verdict itself reports
        return None
    return picture if picture.gpus else None


def _drivers(cluster: Cluster) -> Mapping[int, str]:
    """The driver that publishes each device. Two drivers may have pools, and devices in them, of the same names."""
    return {id(device): slice_.driver for slice_ in cluster.slices for device in slice_.devices}


def _held(claims: Iterable[ResourceClaim]) -> dict[DeviceKey, Claims]:
    """The claims that hold each device. Admin access holds no device."""
    held: dict[DeviceKey, Claims] = defaultdict(tuple)
    for claim in claims:
        for allocated in claim.allocation.results if claim.allocation is not None else ():
            key = (allocated.driver, allocated.pool, allocated.device)
            if not allocated.admin_access and str(claim.metadata) not in held[key]:
                held[key] += (str(claim.metadata),)
    return held
