# SPDX-License-Identifier: Apache-2.0
"""Verdicts on what files have, on templates, and on classes.

The pods and claims of files are placed one after the other, as `dra-dryrun fit` places them. A template is judged by
one claim that is made from it, and a class by a claim for one of its devices, each alone and with nothing in use.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ...kube.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimTemplate,
)
from ..daemons import spread_over_nodes
from ..evaluate import evaluate_each
from ..rollout import with_pods_of_cluster
from ..selection import OpenLabels
from ..sources import Source
from ..status import Note
from ..verdict import Verdict
from ..workload import Demand
from .judgement import Judged, judgement_of
from .restarts import SideOfCluster

_REQUEST: Final = "device"


def judged_demands(
    demands: Sequence[Demand], source: Source, sides: Sequence[SideOfCluster]
) -> tuple[list[Judged], tuple[Note, ...]]:
    """Both judgements about the pods and claims of files, and errors about objects that cannot be judged."""
    labels = OpenLabels(source.open_nodes)
    verdicts: list[list[Verdict]] = []
    errors: list[Note] = []
    for side in sides:
        spread, problems = spread_over_nodes(demands, side.objects, source.world, labels)
        placed = [*with_pods_of_cluster(spread, side.objects, source.world, source.templates)]
        found = list(evaluate_each(placed, side.cluster, side.features, source.world, labels))
        errors += (*problems, *(Note(verdict.demand.name, verdict.error) for verdict in found if verdict.error))
        verdicts.append([replace(each, unknown=(*each.unknown, *side.unread.about(each))) for each in found])
    return list(_joined(*verdicts)), tuple(dict.fromkeys(errors))


def _joined(now: Iterable[Verdict], then: Iterable[Verdict]) -> Iterator[Judged]:
    """The verdicts on the same demands. Pods of one workload with equal verdicts that follow each other are joined."""
    last: Judged | None = None
    for before, after in zip(now, then, strict=True):
        demand = before.demand
        kind, _, name = (demand.workload or demand.name).partition(" ")
        namespace = demand.pod.namespace or next((claim.metadata.namespace for claim in demand.claims), "") or "default"
        judged = Judged(
            kind, namespace, (name.removeprefix(f"{namespace}/"),), judgement_of(before), judgement_of(after)
        )
        if last is not None and demand.workload and _is_equal(last, judged):
            last = replace(last, members=(*last.members, *judged.members))
            continue
        if last is not None:
            yield last
        last = judged
    if last is not None:
        yield last


def _is_equal(judged: Judged, other: Judged) -> bool:
    """Whether two pods are of one workload, and the upgrade changes nothing about either, or the same about both."""
    if (judged.kind, judged.namespace, judged.members[0]) != (other.kind, other.namespace, other.members[0]):
        return False
    unchanged = not judged.differences and not other.differences and judged.now.fits == other.now.fits
    return unchanged or (judged.now, judged.then) == (other.now, other.then)


def judged_models(
    templates: Iterable[ResourceClaimTemplate], now: SideOfCluster, then: SideOfCluster
) -> Iterator[Judged]:
    """Both judgements about one claim from each template, equal templates of a namespace joined, and about a claim for
    one device of each class.
    """
    alike: dict[tuple[str, str, str], list[str]] = {}
    claims: list[ResourceClaim] = []
    models: list[ResourceClaimTemplate | DeviceClass] = [*templates, *now.cluster.classes]
    for model in models:
        claim = _claim_of(model)
        key = (type(model).__name__, model.metadata.namespace, repr(claim.spec))
        if key not in alike:
            claims.append(claim)
        alike.setdefault(key, []).append(model.metadata.name)
    for ((kind, namespace, _), names), claim in zip(alike.items(), claims, strict=True):
        before, after = now.idle_judgement(claim), then.idle_judgement(claim)
        if before.fits and not after.fits:
            after = replace(after, reason=then.idle_reason(claim))
        elif after.fits and not before.fits:
            before = replace(before, reason=now.idle_reason(claim))
        yield Judged(kind, namespace, tuple(names), before, after)


def _claim_of(model: ResourceClaimTemplate | DeviceClass) -> ResourceClaim:
    if isinstance(model, ResourceClaimTemplate):
        return ResourceClaim(model.metadata, model.spec)
    request = DeviceRequest(_REQUEST, exactly=DeviceRequirements(model.metadata.name))
    return ResourceClaim(ObjectMeta(name=model.metadata.name, namespace="default"), DeviceClaim((request,)))
