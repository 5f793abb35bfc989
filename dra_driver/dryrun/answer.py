# SPDX-License-Identifier: Apache-2.0
"""The question of `dra-dryrun fit`, and its answer in every output format."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rich.text import Text

from ..process.command import InputError
from ..scheduler.allocator import Cluster, Features
from .daemons import spread_over_nodes
from .emptiness import missing_classes, missing_devices
from .evaluate import evaluate, evaluate_each
from .neighbours.kueue import Kueue
from .neighbours.queues import Admission, QueueVerdict, in_queues
from .replicas import MOST_COPIES, Copies, count_copies, count_pod_copies
from .report import Json, Line, PlainTable, Report, report_lines, to_document, to_html
from .rollout import with_pods_of_cluster
from .selection import OpenLabels
from .sources import Source
from .status import ExitStatus, Note, NotesError
from .stock import DeviceCount, leftovers
from .unread import UnreadFields
from .verdict import Verdict
from .whatif import without_claims
from .workload import Demand

_NODES: Final = 20
"""The number of nodes in the table of copies, unless the output is wide."""


@dataclass(frozen=True, slots=True)
class Question:
    """The demands to place, and the rules. `replicas` is the number of copies to count (MOST_COPIES: all that fit).

    `asked` is the number of pods of the manifest whose copies are counted. `files` are the files of the demands, as on
    the command line, and `objects` the objects of the cluster. `idle`, `unknown` and `errors` are those of the
    documents (`workload.Input`). `queues` are the queues of Kueue that workloads are in (`neighbours.queues`).
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
class Replicas:
    """How many copies fit `now`, and on an idle cluster. `wanted` is MOST_COPIES for all that fit, and these have to be
    at least as many as the manifest asks for (`asked`).
    """

    wanted: int
    now: Copies
    idle: Copies
    asked: int = 1

    @property
    def fit(self) -> bool:
        """Whether as many copies fit as are wanted."""
        return self.now.count >= (self.asked if self.wanted == MOST_COPIES else self.wanted)


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
        """The answer for a terminal."""
        yield from report_lines(self._report(), wide=wide)
        for queue in self.queues:
            yield from self._queue_lines(queue)
        if self.replicas is not None:
            yield _headline(self.replicas, self.verdicts[0].demand)
            yield from _nodes(self.replicas, wide)
        if self.left:
            table = PlainTable("Free before", "After", "Profile", "Model")
            for leftover in self.left:
                table.add_row(leftover.before, leftover.after, leftover.kind.profile, leftover.kind.model)
            yield table

    def page(self) -> str:
        """The answer as an HTML page."""
        return to_html(self._report())

    def document(self) -> Json:
        """The answer as plain dicts and lists."""
        found = to_document(self._report())
        if self.replicas is not None:
            found |= {"fits": self.fits, "replicas": _encode_replicas(self.replicas)}
        found |= {"fits": self.fits, "queues": [queue.document() for queue in self.queues]}
        return {**found, "leftover": [_encode_leftover(leftover) for leftover in self.left]}

    def _report(self) -> Report:
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
        report = Report.of(self.verdicts, source.objects, source.where, features, source.assumptions, notes, asked)
        return replace(report, unknown=self.unknown, errors=self.errors)

    def _queue_lines(self, queue: QueueVerdict) -> Iterator[Text]:
        """What Kueue says about a workload, and whether quota or devices stop it."""
        style = "bold green" if queue.admits else "bold red" if queue.is_known else "bold yellow"
        where = f"queue {queue.queue}" + (f" (ClusterQueue {queue.cluster_queue})" if queue.cluster_queue else "")
        yield Text.assemble((f"Kueue: {queue.headline}", style), f"  {queue.workload} in {where}")
        yield from (Text(f"  {line}") for line in queue.lines)
        own = [verdict for verdict in self.verdicts if verdict.demand.name.partition(",")[0] == queue.workload]
        stopped = [
            *(["quota"] if not queue.admits and queue.is_known else []),
            *(["nodes or devices"] if not all(verdict.fits for verdict in own) else []),
        ]
        yield Text(f"  stopped by: {' and '.join(stopped) or 'nothing'}")


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
    verdicts: list[Verdict] = []
    try:
        for verdict in evaluate_each(demands, objects, features, source.world, labels):
            verdicts.append(replace(verdict, unknown=(*verdict.unknown, *unread.about(verdict))))
            tell(len(verdicts), len(demands))
    except KeyboardInterrupt:
        return Answer(question, source, verdicts, interrupted=f"{len(verdicts)} of {len(demands)} are answered")
    if (verdicts and all(verdict.error for verdict in verdicts)) or (errors and not verdicts):
        raise NotesError(*Answer(question, source, verdicts).errors)
    fitting = [verdict for verdict in verdicts if not verdict.state and not verdict.demand.stage]
    cluster = Cluster.of(objects)
    workloads = in_queues((verdict.demand for verdict in verdicts if not verdict.state), question.queues)
    queues = tuple(Admission(question.kueue, cluster, features).verdicts(workloads))
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


def _headline(replicas: Replicas, demand: Demand) -> Text:
    style = "bold green" if replicas.fit else "bold red"
    said = "enough room" if replicas.fit else "not enough room"
    text = f": {_times(replicas, replicas.now)} now, {_times(replicas, replicas.idle)} with nothing in use"
    if replicas.wanted == MOST_COPIES:
        said = f"{_times(replicas, replicas.now)} fit"
        text += f"; the manifest asks for {replicas.asked}" if replicas.asked > 1 else ""
    return Text.assemble((said, style), f"  copies of {demand.workload or demand.name}", text)


def _times(replicas: Replicas, copies: Copies) -> str:
    asked = f" of {replicas.wanted}" if replicas.wanted != MOST_COPIES else " or more" if copies.more else ""
    return f"{copies.count}{asked}"


def _nodes(replicas: Replicas, wide: bool) -> Iterator[Line]:
    table = PlainTable("Node", "Now", "Nothing in use")
    names = list(dict.fromkeys([*replicas.now.by_node, *replicas.idle.by_node]))
    for name in names if wide else names[:_NODES]:
        table.add_row(name, replicas.now.by_node.get(name, 0), replicas.idle.by_node.get(name, 0))
    more = 0 if wide else len(names) - _NODES
    yield table
    if more > 0:
        yield Text(f"and {more} more nodes (all of them with -o wide)")


def _encode_replicas(replicas: Replicas) -> Json:
    return {
        "wanted": None if replicas.wanted == MOST_COPIES else replicas.wanted,
        "limit": MOST_COPIES,
        "now": _encode_copies(replicas.now),
        "nothingInUse": _encode_copies(replicas.idle),
    }


def _encode_copies(copies: Copies) -> Json:
    nodes = [{"node": name, "copies": count} for name, count in copies.by_node.items()]
    return {"copies": copies.count, "more": copies.more, "nodes": nodes}


def _encode_leftover(leftover: DeviceCount) -> Json:
    kind = leftover.kind
    return {
        "driver": kind.driver,
        "model": kind.model or None,
        "profile": kind.profile or None,
        "freeBefore": leftover.before,
        "freeAfter": leftover.after,
    }
