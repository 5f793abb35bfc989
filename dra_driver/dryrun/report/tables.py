# SPDX-License-Identifier: Apache-2.0
"""A report for people at a terminal: for each demand a headline, and its devices or the reasons of the nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from ...gpu.picture import NodePicture, drawn
from ...process.words import counted, listed
from ...scheduler.allocator import Check
from ..explain import Removal
from ..queueverdict import QueueVerdict
from ..replicas import MOST_COPIES, Copies, Replicas
from ..stock import DeviceCount
from ..verdict import Verdict
from ..workload import Demand
from .model import Item, Report, ReportAnswer, joined
from .output import Line
from .picture import attribute, placed_memory
from .terminal import Drawing, PlainTable

_SHOWN: Final = 6
"""The number of kinds of nodes that are explained."""
_SEEN: Final = 3
"""The number of found values that are shown, unless the output is wide."""
_LISTED: Final = 10
"""The number of pods of one workload that are listed one by one. More pods are summarised."""
_COPIED_NODES: Final = 20
"""The number of nodes in the table of copies, unless the output is wide."""
_INDENT: Final = "  "


def report_lines(report: Report, *, wide: bool) -> Iterator[Line]:
    """The lines of a report, with pictures of GPUs if memory slices matter. `wide` adds UUIDs and all pictures."""
    yield Text(f"devices of {counted(report.nodes, 'node')}, from {report.where}", style="bold")
    for assumption in report.assumptions:
        yield Text(f"simulating {assumption}", style="yellow")
    for note in report.notes:
        yield Text(note, style="yellow")
    demands = {answer.verdict.demand.name for answer in report.answers}
    for unknown in report.unknown:
        if unknown.subject not in demands:  # notes on demands are printed with them
            yield Text.assemble(("not known", "bold yellow"), f"  {unknown}")
    for _, run in groupby(report.answers, lambda answer: answer.verdict.demand.workload or id(answer)):
        group = list(run)
        if len(group) > _LISTED and not wide:
            yield from _summarised(group, report.nodes)
            continue
        for answer in joined(group):
            yield from _answer(answer, report.nodes, wide=wide)
    yield from _totals(report, wide=wide)


def _totals(report: Report, *, wide: bool) -> Iterator[Line]:
    """Answers about all demands together: Kueue's, the number of copies, and the devices that are left."""
    for queue in report.queues:
        yield from _queue(queue, report)
    if report.replicas is not None:
        yield _copies_headline(report.replicas, report.answers[0].verdict.demand)
        yield from _copies_by_node(report.replicas, wide)
    if report.leftover:
        yield leftover_table(report.leftover)


def _summarised(group: Sequence[ReportAnswer], nodes: int) -> Iterator[Line]:
    """The number of pods of a workload that fit, their nodes, and why the next pod does not fit."""
    verdicts = [answer.verdict for answer in group]
    fitting = [verdict for verdict in verdicts if verdict.fits]
    workload = verdicts[0].demand.workload
    style = "bold green" if len(fitting) == len(group) else "bold red"
    yield Text.assemble((f"{len(fitting)} of {len(group)} fit", style), f"  pods of {workload} (each with -o wide)")
    places = Counter(verdict.node or "" for verdict in fitting)
    if places and not verdicts[0].demand.daemon_node:
        yield Text(f"{_INDENT}on {listed([f'{node} ({count})' for node, count in places.items()])}")
    yield from _assumed(verdicts)
    others = [answer for answer in group if not answer.verdict.fits]
    if not others:
        return
    if verdicts[0].demand.daemon_node:
        by_reason: dict[str, list[str]] = defaultdict(list)
        for other in others:
            by_reason[_reason(other.verdict)].append(other.verdict.demand.daemon_node)
        yield from (Text(f"{_INDENT}{listed(names)}: {reason}") for reason, names in by_reason.items())
        return
    yield Text("then:")
    yield from _answer(others[0], nodes, wide=False)


def _reason(verdict: Verdict) -> str:
    """Why a pod of a DaemonSet does not fit on its node, in one line."""
    if verdict.summary:
        return verdict.summary.removeprefix("1 node: 1 ")
    said = [*verdict.rejects, *verdict.problems, *([verdict.error] if verdict.error else [])]
    node = verdict.demand.daemon_node
    for refused in verdict.refused:
        if node not in refused.nodes and not refused.explanation.fatal:
            continue
        said += [refused.explanation.error] if refused.explanation.error else []
        for request in refused.explanation.requests:
            if request.missing:
                why = "".join(f"; {removal.devices} {removal.text}" for removal in request.removals)
                said.append(f"request {request.text}{why}")
        said += refused.explanation.pools
    return "; ".join(said) or "the devices cannot be given together"


def _answer(answer: ReportAnswer, nodes: int, *, wide: bool) -> Iterator[Line]:
    verdict = answer.verdict
    yield _headline(verdict, nodes)
    yield from (Text(f"{_INDENT}{problem}", style="bold red") for problem in verdict.problems)
    yield from _assumed([verdict])
    yield from (Text(f"{_INDENT}{note}", style="yellow") for note in verdict.notes)
    if verdict.defect is not None:
        whose = "the claim is correct: " if verdict.node is None else ""
        yield Text(f"{_INDENT}{whose}{verdict.defect.text}", style="bold yellow")
    if verdict.node is None:
        yield from _refusals(verdict, wide)
    elif answer.items:
        yield devices_table(answer.items, wide=wide)
    if (wide or answer.shows_slices) and answer.picture is not None:
        yield from _picture(answer.picture, closest=verdict.node is None)


def _assumed(verdicts: Sequence[Verdict]) -> Iterator[Text]:
    """The unknown facts that the verdicts depend on, and their assumptions about nodes. Each text appears once."""
    for text in dict.fromkeys(text for verdict in verdicts for text in verdict.unknown):
        yield Text(f"{_INDENT}not known: {text}", style="bold yellow")
    for text in dict.fromkeys(text for verdict in verdicts for text in verdict.assumptions):
        yield Text(f"{_INDENT}assuming {text}", style="yellow")


def _headline(verdict: Verdict, nodes: int) -> Text:
    name = verdict.demand.name
    if verdict.state == "ended":
        return Text.assemble(("ended", "bold"), f"  {name}: it is not placed again")
    if verdict.state:
        return Text.assemble((verdict.state, "bold green"), f"  {name}: on node ", (str(verdict.node), "bold"))
    if verdict.problems:
        said = f"  {name}: the driver cannot apply its configuration on node {verdict.node}"
        return Text.assemble(("would not start", "bold red"), said)
    if verdict.error:
        return Text.assemble(("cannot be evaluated", "bold red"), f"  {name}: {verdict.error}")
    if verdict.rejects:
        return Text.assemble(("not admitted", "bold red"), f"  {verdict.demand.name}: {'; '.join(verdict.rejects)}")
    if verdict.node is None:
        line = Text.assemble(("fits nowhere", "bold red"), f"  {verdict.demand.name}")
        said = f"none of the {nodes} nodes is suitable" if nodes > 1 else "the only node is not suitable"
        return line.append(f": {said}" if nodes else ": there is no node")
    others = len(verdict.fitting) - 1
    line = Text.assemble(("fits", "bold green"), f"  {verdict.demand.name}: on node ", (verdict.node, "bold"))
    return line.append(f", and on {counted(others, 'other node')}" if others else "")


def devices_table(items: Sequence[Item], *, wide: bool) -> PlainTable:
    """The devices that a demand gets. `wide` adds the UUIDs of their GPUs."""
    table = PlainTable("Claim", "Request", "Device", "Profile", "Memory", "Model", *(["GPU"] if wide else ()))
    for item in items:
        placed, device = item.placed, item.placed.device
        cells = [placed.claim, placed.request, placed.name, attribute(device, "profile"), placed_memory(placed)]
        uuid = attribute(device, "parentUUID") or attribute(device, "uuid")
        table.add_row(*cells, attribute(device, "productName"), *([uuid] if wide else ()))
    return table


def _refusals(verdict: Verdict, wide: bool) -> Iterator[Text]:
    """Why each kind of node cannot have the demand, the closest first, and the changes that would help."""
    if verdict.summary:
        yield Text(f"{_INDENT}{verdict.summary}")
    for refused in verdict.refused[:_SHOWN]:
        explanation = refused.explanation
        who = "every node" if explanation.fatal else listed(refused.nodes)
        yield Text.assemble((f"  {who}", "bold"), f": {explanation.error}" if explanation.error else "")
        for pool in explanation.pools:
            yield Text(f"    {pool}")
        for request in explanation.requests:
            yield Text(f"    request {request.text}")
            yield from (Text(f"      {line}") for removal in request.removals for line in _removal(removal, wide))
    more = len(verdict.refused) - _SHOWN
    if more > 0:
        yield Text(f"  and {counted(more, 'more kind')} of nodes (all of them with -o json)")
    if verdict.changes:
        yield Text("  it would fit after one of these changes:")
        yield from (Text(f"    {change.text} (then on {change.node})", style="green") for change in verdict.changes)
    if verdict.removal is not None:
        gone = ", ".join(verdict.removal.pods)
        yield Text(f"  to make room, the scheduler would remove from {verdict.removal.node}: {gone}", style="yellow")
    if verdict.event:
        yield Text(f"  the scheduler says: {verdict.event}", style="dim")


def _removal(removal: Removal, wide: bool) -> Iterator[str]:
    yield f"{removal.devices:4} {removal.text}"
    seen = seen_by(removal, len(removal.saw) if wide else _SEEN)
    if seen:
        yield f"     found {seen}" if removal.check is Check.SELECTOR else f"     {seen}"


def seen_by(removal: Removal, most: int) -> str:
    """Up to `most` values that the check found, with the number of devices unless all devices have the value."""
    seen = [value if count == removal.devices else f"{value} ({count})" for value, count in removal.saw[:most]]
    return "; ".join([*seen, "…"] if len(removal.saw) > most else seen)


def _picture(picture: NodePicture, *, closest: bool) -> Iterator[Line]:
    model = f" ({picture.model})" if picture.model else ""
    yield Text(f"{_INDENT}GPUs of {picture.node}{', which comes closest' if closest else ''}{model}:", style="dim")
    yield Drawing(lambda columns: (Text(_INDENT).append(line) for line in drawn(picture, columns - len(_INDENT))))


def _queue(queue: QueueVerdict, report: Report) -> Iterator[Text]:
    """What Kueue says about a workload, and whether quota or devices stop it."""
    style = "bold green" if queue.admits else "bold red" if queue.is_known else "bold yellow"
    where = f"queue {queue.queue}" + (f" (ClusterQueue {queue.cluster_queue})" if queue.cluster_queue else "")
    yield Text.assemble((f"Kueue: {queue.headline}", style), f"  {queue.workload} in {where}")
    yield from (Text(f"{_INDENT}{line}") for line in queue.lines)
    yield Text(f"{_INDENT}stopped by: {stopped_by(queue, report)}")


def stopped_by(queue: QueueVerdict, report: Report) -> str:
    """Whether quota or devices stop the workload of a queue: `quota and nodes or devices`, or `nothing`."""
    verdicts = [answer.verdict for answer in report.answers]
    own = [verdict for verdict in verdicts if verdict.demand.name.partition(",")[0] == queue.workload]
    stopped = ["quota"] if not queue.admits and queue.is_known else []
    stopped += [] if all(verdict.fits for verdict in own) else ["nodes or devices"]
    return " and ".join(stopped) or "nothing"


def leftover_table(leftover: Sequence[DeviceCount]) -> PlainTable:
    """The kinds of devices of which the demands leave fewer."""
    table = PlainTable("Free before", "After", "Profile", "Model")
    for count in leftover:
        table.add_row(count.before, count.after, count.kind.profile, count.kind.model)
    return table


def _copies_headline(replicas: Replicas, demand: Demand) -> Text:
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


def _copies_by_node(replicas: Replicas, wide: bool) -> Iterator[Line]:
    table = PlainTable("Node", "Now", "Nothing in use")
    names = list(dict.fromkeys([*replicas.now.by_node, *replicas.idle.by_node]))
    for name in names if wide else names[:_COPIED_NODES]:
        table.add_row(name, replicas.now.by_node.get(name, 0), replicas.idle.by_node.get(name, 0))
    more = 0 if wide else len(names) - _COPIED_NODES
    yield table
    if more > 0:
        yield Text(f"and {more} more nodes (all of them with -o wide)")
