# SPDX-License-Identifier: Apache-2.0
"""The whole comparison: all aspects of the cluster and of files, now and then."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final

from ...gpu.policy import NodePolicy
from ..sources import Source, tainted
from ..status import ExitStatus, Note
from ..workload import Demand
from .difference import Aspect, Difference, Effect
from .expressions import expression_differences
from .fields import field_differences
from .judgement import Judged
from .manifests import judged_demands, judged_models
from .policy import ObjectsUnderPolicy, under_policy
from .pools import pool_differences
from .releases import gate_differences, rule_differences
from .restarts import SideOfCluster, judged, subjects_of
from .sides import Side, Sides
from .versions import version_differences

JSON = Mapping[str, Any]
_SAME: Final = ObjectsUnderPolicy((), (), ())
CLUSTER: Final = "(cluster)"
"""Stands for the namespace of objects that have none."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """The objects of files: the pods and claims to place, and all objects as they are written (JSON). `unknown` and
    `errors` are notes about them.
    """

    demands: Sequence[Demand] = ()
    values: Sequence[JSON] = ()
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """The number of judged objects of a namespace, how many of them fit now and then, and how many change."""

    namespace: str
    objects: int
    fit_now: int
    fit_then: int
    effects: Mapping[Effect, int]
    unknown: int


@dataclass(frozen=True)
class Comparison:
    """The differences between now and then. `judged` has the answers on which differences of verdicts depend.

    `unaffected` is the number of pods about which no release decides differently. `notes` tell about the policy.
    """

    source: Source
    sides: Sides
    judged: Sequence[Judged]
    of_objects: Sequence[Difference]
    unaffected: int
    notes: tuple[str, ...] = ()
    more_unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()

    @cached_property
    def differences(self) -> Sequence[Difference]:
        """All differences in the order of their aspects. Differences about objects come before differences about
        releases, and breaks come before other effects.
        """
        every = [*chain.from_iterable(each.differences for each in self.judged), *self.of_objects]
        aspects, effects = list(Aspect), list(Effect)
        return sorted(
            every,
            key=lambda found: (
                aspects.index(found.aspect),
                not found.members,
                effects.index(found.effect),
                found.namespace,
            ),
        )

    @cached_property
    def unknown(self) -> Sequence[Note]:
        """The notes about what could not be judged."""
        of_judged = (Note(each.subject, text) for each in self.judged for text in each.unknown)
        return tuple(dict.fromkeys((*self.more_unknown, *of_judged)))

    @property
    def breaks(self) -> bool:
        """Whether something that fits or works now does not then."""
        return any(difference.effect is Effect.BREAKS for difference in self.differences)

    @property
    def status(self) -> ExitStatus:
        """The exit status."""
        return ExitStatus.of(fits=not self.breaks, errors=bool(self.errors), unknown=bool(self.unknown))

    @property
    def namespaces(self) -> list[NamespaceCount]:
        """The counts of each namespace, in the order of their names. Objects without a namespace come last."""
        names = sorted({each.namespace for each in self.judged}, key=lambda name: (not name, name))
        return [self._counted(name) for name in names]

    def _counted(self, namespace: str) -> NamespaceCount:
        members = [each for each in self.judged if each.namespace == namespace]
        effects: Counter[Effect] = Counter()
        for each in members:
            if each.effect is not None:
                effects[each.effect] += len(each.members)
        return NamespaceCount(
            namespace or CLUSTER,
            sum(len(each.members) for each in members),
            sum(len(each.members) for each in members if each.now.fits),
            sum(len(each.members) for each in members if each.then.fits),
            effects,
            sum(len(each.members) for each in members if each.unknown),
        )


def compare(
    source: Source,
    sides: Sides,
    manifests: Manifests,
    policy: NodePolicy | None = None,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Comparison:
    """Everything that differs. With a `policy`, the nodes publish then what it says. `tell` is called as by `judged`.
    Raises InputError.
    """
    published = under_policy(source.objects, policy, sides.then) if policy is not None else _SAME
    before = tainted(source.objects, sides.now.features, None)
    after = tainted(published.objects or source.objects, sides.then.features, None)
    now = SideOfCluster(source.world, before, sides.now, _known(source, sides.now))
    then = SideOfCluster(source.world, after, sides.then, _known(source, sides.then))
    subjects, unaffected = subjects_of(source.world, now.cluster)
    templates = source.world.templates if source.world is not None else ()
    of_files, errors = judged_demands(manifests.demands, source, (now, then))
    found = [
        *judged(subjects, now, then, tell),
        *of_files,
        *judged_models(templates, now, then),
    ]
    claims = {id(claim): claim for demand in manifests.demands for claim in demand.claims}
    decoded = [*source.objects, *templates, *claims.values()]
    of_objects = chain(
        pool_differences(now.cluster, then.cluster, sides),
        expression_differences(decoded, sides),
        field_differences(decoded, sides),
        version_differences(manifests.values, sides),
        gate_differences(sides),
        rule_differences(sides),
    )
    return Comparison(
        source,
        sides,
        found,
        tuple(of_objects),
        unaffected,
        published.notes,
        (*source.unknown, *source.unknown_of_pods, *published.unknown, *manifests.unknown),
        (*source.errors, *manifests.errors, *errors),
    )


def _known(source: Source, side: Side) -> Mapping[str, bool]:
    """The gates whose value is known on a side: the gates that are set, and the gates that the cluster reports."""
    reported = {gate: side.gates[gate] for gate in source.gates if gate in side.gates}
    return {**reported, **side.given}
