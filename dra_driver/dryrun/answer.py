# SPDX-License-Identifier: Apache-2.0
"""The question of `dra-dryrun fit`, and its answer in every output format."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..process.command import InputError
from ..scheduler.allocator import Cluster, Features
from .daemons import spread_over_nodes
from .emptiness import missing_classes, missing_devices
from .evaluate import evaluate, evaluate_each
from .kueue.objects import Kueue
from .kueue.queues import QueueAdmission, in_queues
from .queueverdict import QueueVerdict
from .replicas import Copies, Replicas, count_copies, count_pod_copies
from .report import Json, Line, Report, report_lines, to_document, to_html
from .rollout import with_pods_of_cluster
from .selection import OpenLabels
from .sources import Source
from .status import ExitStatus, Note, NotesError
from .stock import DeviceCount, leftovers
from .unread import UnreadFields
from .verdict import Verdict
from .whatif import without_claims
from .workload import Demand


@dataclass(frozen=True, slots=True)
class Question:
    """The demands to place, and the rules. `replicas` is the number of copies to count (MOST_COPIES: all that fit).

    `asked` is the number of pods of the manifest whose copies are counted. `files` are the files of the demands, as on
    the command line, and `objects` the objects of the cluster. `idle`, `unknown` and `errors` are those of the
    documents (`workload.Input`). `queues` are the queues of Kueue that workloads are in (`kueue.queues`).
    """

    demands: Sequence[Demand]
    features: Features
    replicas: int | None = None
    asked: int = 1
    files: Sequence[str] = ()
    objects: Sequence[str] = ()
    idle: tuple[str, ...] = ()
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    queues: Mapping[str, str] = field(default_factory=dict)
    kueue: Kueue = field(default_factory=Kueue)


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdicts on the demands, or the verdict on one copy together with the number of copies."""

    question: Question
    source: Source
    verdicts: Sequence[Verdict] = ()
    left: Sequence[DeviceCount] = ()
    replicas: Replicas | None = None
    interrupted: str = ""
    """After Ctrl-C: what the answer lacks."""
    queues: Sequence[QueueVerdict] = ()

    @property
    def fits(self) -> bool:
        """Whether everything fits."""
        if self.replicas is not None:
            return self.replicas.fit
        has_quota = all(queue.admits or not queue.is_known for queue in self.queues)
        return has_quota and all(verdict.fits for verdict in self.verdicts)

    @property
    def unknown(self) -> tuple[Note, ...]:
        """The notes about what was not evaluated, and about what may change verdicts."""
        of_verdicts = (Note(verdict.demand.name, text) for verdict in self.verdicts for text in verdict.unknown)
        whole_pods = any(verdict.demand.submitted is not None for verdict in self.verdicts)
        of_pods = self.source.unknown_of_pods if whole_pods else ()
        of_queues = (
            Note(f"Kueue, {queue.workload}", reason)
            for queue in self.queues
            if not queue.is_known
            for reason in queue.reasons
        )
        return (*self.question.unknown, *self.source.unknown, *of_pods, *of_verdicts, *of_queues)

    @property
    def errors(self) -> tuple[Note, ...]:
        """The errors about objects that were not evaluated."""
        of_verdicts = (Note(verdict.demand.name, verdict.error) for verdict in self.verdicts if verdict.error)
        of_classes = dict.fromkeys(
            Note(verdict.demand.workload or verdict.demand.name, text)
            for verdict in self.verdicts
            if verdict.node is None and not verdict.error
            for text in missing_classes(verdict.demand.claims, self.source.objects)
        )
        return (*self.question.errors, *self.source.errors, *of_verdicts, *of_classes)

    @property
    def status(self) -> ExitStatus:
        """The exit status."""
        return ExitStatus.of(fits=self.fits, errors=bool(self.errors), unknown=bool(self.unknown))

    def says_the_same_as(self, other: "Answer") -> bool:
        """Whether the other answer has the same verdicts, whatever else has changed in the cluster."""
        mine = (self.verdicts, self.left, self.replicas, self.queues)
        return mine == (other.verdicts, other.left, other.replicas, other.queues)

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The report for a terminal."""
        return report_lines(self._report(), wide=wide)

    def page(self) -> str:
        """The report as an HTML page."""
        return to_html(self._report())

    def document(self) -> Json:
        """The report as plain dicts and lists."""
        return to_document(self._report())

    def _report(self) -> Report:
        """The one value from which all formats are made."""
        source, features = self.source, self.question.features
        notes = source.notes if any(verdict.demand.submitted is not None for verdict in self.verdicts) else ()
        if source.served and any(verdict.demand.extended for verdict in self.verdicts):
            notes = (source.served, *notes)
        claims = (claim for verdict in self.verdicts for claim in verdict.demand.claims)
        notes = (*source.warnings, *missing_devices(claims, source.objects, source.server), *notes)
        notes += tuple(f"{name} makes no pods: nothing is requested now" for name in self.question.idle)
        if features.counters_beside_devices and any(verdict.placed for verdict in self.verdicts):
            order = f"kube-scheduler {features.release} does not sort ResourceSlices by name"
            notes += (f"{order}: which of several equal devices is taken is open",)
        asked = {
            "Date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            "Command": shlex.join(["dra-dryrun", *sys.argv[1:]]),
            "Files": ", ".join(self.question.files),
            "Objects": ", ".join(self.question.objects),
        }
        return replace(
            Report.of(self.verdicts, source.objects, source.where, features),
            assumptions=tuple(source.assumptions),
            notes=notes,
            asked=asked,
            unknown=self.unknown,
            errors=self.errors,
            fits=self.fits,
            leftover=tuple(self.left),
            replicas=self.replicas,
            queues=tuple(self.queues),
        )


def answered(question: Question, source: Source, tell: Callable[[int, int], None] = lambda *_: None) -> Answer:
    """The answer for the objects of `source`. `tell` is called with the number of placed demands and of all demands.

    After Ctrl-C, the answer has the verdicts that are known until then. Raises InputError.
    """
    features, objects, labels = question.features, source.objects, OpenLabels(source.open_nodes)
    if question.replicas is not None:
        return _copies(question, question.replicas, source)
    unread = UnreadFields(objects, features, source.gates)
    spread, errors = spread_over_nodes(question.demands, objects, source.world, labels)
    demands = [*with_pods_of_cluster(spread, objects, source.world, source.templates)]
    source = replace(source, errors=(*source.errors, *errors))
    cluster = Cluster.of(objects)
    verdicts: list[Verdict] = []
    try:
        for verdict in evaluate_each(demands, cluster, features, source.world, labels):
            verdicts.append(replace(verdict, unknown=(*verdict.unknown, *unread.about(verdict))))
            tell(len(verdicts), len(demands))
    except KeyboardInterrupt:
        return Answer(question, source, verdicts, interrupted=f"{len(verdicts)} of {len(demands)} are answered")
    if (verdicts and all(verdict.error for verdict in verdicts)) or (errors and not verdicts):
        raise NotesError(*Answer(question, source, verdicts).errors)
    fitting = [verdict for verdict in verdicts if not verdict.state and not verdict.demand.stage]
    workloads = in_queues((verdict.demand for verdict in verdicts if not verdict.state), question.queues)
    queues = tuple(QueueAdmission(question.kueue, cluster, features).verdicts(workloads))
    return Answer(question, source, verdicts, leftovers(fitting, cluster, features), queues=queues)


def _copies(question: Question, wanted: int, source: Source) -> Answer:
    demand, features = question.demands[0], question.features
    objects, world, labels = source.objects, source.world, OpenLabels(source.open_nodes)
    (verdict,) = evaluate([demand], objects, features, world, labels)
    if verdict.error:
        raise InputError(f"{demand.name}: {verdict.error}")
    of_fields = UnreadFields(objects, features, source.gates).about(verdict, all_candidates=True)
    verdicts = [replace(verdict, unknown=(*verdict.unknown, *of_fields))]
    if demand.missing:
        return Answer(question, source, verdicts, replicas=Replicas(wanted, Copies(), Copies(), question.asked))
    unused = without_claims(objects)
    try:
        if world is not None and demand.submitted is not None:
            now = count_pod_copies(demand, world, Cluster.of(objects), features, wanted, labels)
            empty = count_pod_copies(demand, world.idle(), Cluster.of(unused), features, wanted, labels)
        else:
            now = count_copies(demand, objects, features, wanted, labels)
            empty = count_copies(demand, unused, features, wanted, labels)
    except KeyboardInterrupt:
        return Answer(question, source, verdicts, interrupted="the copies are not counted")
    return Answer(question, source, verdicts, replicas=Replicas(wanted, now, empty, question.asked))
