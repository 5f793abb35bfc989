# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun autoscale`: which node group takes a pending pod, and why a node stays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from ...kube.api import ApiClient, NotFoundError
from ...kube.kinds import NODES, PODS
from ...kube.resource import Node, ResourceSlice
from ...process.command import InputError
from ...scheduler.allocator import Cluster, Features
from ...scheduler.pods import ClusterNode, Pod
from ..completion import complete_operand
from ..documents import Document, read_all, within
from ..evaluate import evaluate
from ..fit import read_demands
from ..nodetypes import is_node_type, simulated_nodes
from ..options import Subcommand, filename_option, general_options, release_options
from ..progress import progress
from ..release import Rules
from ..report import API_VERSION, Json, Line, PlainTable, counted, format_option, print_report
from ..rights import Needs
from ..selection import OpenLabels
from ..sources import Origin, Place, Source, opened, origin_options
from ..status import ExitStatus, Note, documents_of
from ..successors import Placing, claims_of_successor, successor_of, without_pods
from ..unread import decode_kept
from ..verdict import Verdict
from ..whatif import WhatIf, what_if_options
from ..workload import Demand, Input
from ..world import ROOM, World
from .autoscaler import (
    SCALE_DOWN_DISABLED,
    THRESHOLD,
    Template,
    Utilization,
    blocker,
    copied,
    group_of,
    groups_of,
    is_skipped,
    utilization,
)

JSON = dict[str, Any]

_NOT_EVALUATED: Final = (
    "not evaluated: the minimum and the maximum size of groups, prices and priorities of groups, how long a node is"
    " unneeded (10 minutes), and limits of the cluster"
)


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """Whether a new node of a group takes a pod, and if not, why."""

    group: str
    takes: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """A pending pod (or several equal ones): the node where it fits already, or the answers of the groups."""

    pod: str
    count: int
    node: str
    groups: tuple[GroupAnswer, ...] = ()

    @property
    def helps(self) -> bool:
        """Whether the pod gets a node."""
        return bool(self.node) or any(group.takes for group in self.groups)


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """A node, its utilization, and why it stays. Without reasons, it is removed."""

    node: str
    group: str
    used: Utilization
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AutoscaleReport:
    """The answer of `dra-dryrun autoscale`."""

    where: str
    pods: Sequence[ScaleUp]
    nodes: Sequence[ScaleDown]
    notes: Sequence[str] = ()
    unknown: Sequence[Note] = ()
    errors: Sequence[Note] = ()

    @property
    def status(self) -> ExitStatus:
        """1 if no group takes a pod."""
        fits = all(pod.helps for pod in self.pods)
        return ExitStatus.of(fits=fits, errors=bool(self.errors), unknown=bool(self.unknown))

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The answer for a terminal."""
        yield Text(f"cluster-autoscaler, from {self.where}", style="bold")
        yield from (Text(note, style="yellow") for note in self.notes)
        for note in self.unknown:
            yield Text.assemble(("not known", "bold yellow"), f"  {note}")
        for pod in self.pods:
            yield from _pod_lines(pod)
        for node in self.nodes:
            yield from _node_lines(node)
        yield Text(_NOT_EVALUATED, style="dim")

    def document(self) -> Json:
        """The answer as plain dicts and lists."""
        return {
            "apiVersion": API_VERSION,
            "kind": "AutoscaleReport",
            "source": self.where,
            "pods": [
                {
                    "pod": pod.pod,
                    "count": pod.count,
                    "fitsOn": pod.node or None,
                    "groups": [
                        {"group": group.group, "takes": group.takes, "reason": group.reason or None}
                        for group in pod.groups
                    ],
                }
                for pod in self.pods
            ],
            "nodes": [
                {
                    "node": node.node,
                    "group": node.group or None,
                    "utilization": node.used.value,
                    "utilizationOf": node.used.resource,
                    "stays": bool(node.reasons),
                    "reasons": list(node.reasons),
                }
                for node in self.nodes
            ],
            "notes": documents_of((*self.unknown, *(Note("", note) for note in self.notes))),
            "errors": documents_of(self.errors),
        }


def _pod_lines(pod: ScaleUp) -> Iterator[Line]:
    name = pod.pod + (f" ({pod.count} equal pods)" if pod.count > 1 else "")
    if pod.node:
        yield Text.assemble(("fits", "bold green"), f"  {name}: on node {pod.node}, so no node is added")
        return
    taking = [group.group for group in pod.groups if group.takes]
    if taking:
        yield Text.assemble(("scales up", "bold green"), f"  {name}: {counted(len(taking), 'group')} would take it")
    else:
        yield Text.assemble(("stays pending", "bold red"), f"  {name}: no group would take it")
    if pod.groups:
        table = PlainTable("Group", "Takes it", "Why not")
        for group in pod.groups:
            table.add_row(group.group, "yes" if group.takes else "no", group.reason)
        yield table


def _node_lines(node: ScaleDown) -> Iterator[Line]:
    group = f" of group {node.group}" if node.group else ""
    used = f"utilization {node.used.value:.3g} of {node.used.resource}"
    if not node.reasons:
        yield Text.assemble(("is removed", "bold green"), f"  {node.node}{group}: {used}, and its pods fit elsewhere")
        return
    yield Text.assemble(("stays", "bold"), f"  {node.node}{group}: {used}")
    yield from (Text(f"  {reason}") for reason in node.reasons)


@click.command(
    "autoscale",
    cls=Subcommand,
    examples=[
        "dra-dryrun autoscale pod/train",
        "dra-dryrun autoscale --all-pending --group big=h100x8 --group small=template.yaml",
        "dra-dryrun autoscale --node node-7",
        "dra-dryrun autoscale claim.yaml --group big=h100x8 --built-in",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE|TYPE/NAME]...", shell_complete=complete_operand)
@filename_option
@click.option("--all-pending", is_flag=True, help="The pending pods of the namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="With --all-pending: the pods of all namespaces.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME=TEMPLATE",
    help="A node group: its name, and a node of the cluster, a file that `node-template` wrote, or a built-in type of"
    " nodes. Without it, the groups are those of the clouds' labels. May be repeated.",
)
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Tell why this node stays. May be repeated.")
@origin_options
@what_if_options
@release_options
@format_option("How the answer is printed.")
@general_options
def autoscale(  # noqa: PLR0913, PLR0917  # one for each flag
    files: tuple[str, ...],
    more_files: tuple[str, ...],
    all_pending: bool,
    all_namespaces: bool,
    groups: tuple[str, ...],
    nodes: tuple[str, ...],
    origin: Origin,
    what_if: WhatIf,
    rules: Rules,
    output: str,
) -> int:
    """Tell which node group would take a pending pod, and why an idle node stays, by cluster-autoscaler's rules.

    Pods are given as for `fit`. A group takes a pod if the pod fits on a new node like the group's template, on which
    only DaemonSets run. A node stays if more than half of its devices is in use, if a pod on it may not be moved, or
    if a pod would fit nowhere else.

    The exit status is 0 if each pod gets a node, 1 if no group takes one of them, 2 if the input is wrong or cannot be
    read, and 3 if something is not known.
    """
    named = (*files, *more_files)
    if not (named or all_pending or nodes):
        raise click.UsageError("Missing argument: name pods (FILE, pod/NAME or --all-pending), or give --node.")
    with opened(origin, rules, Needs(whole_pods=True, references=True)) as place, progress("reading") as say:
        pending = place.pods(namespace=None if all_namespaces else place.namespace) if all_pending else []
        given = Input()
        if named or pending:
            given, _ = read_demands(named, place, origin.namespace, pending)
        source = place.gather(what_if, given.objects, given.around, devices_only=False)
        say("simulating")
        scaler = _Scaler(place, source)
        report = scaler.report(given, scaler.groups(groups), nodes)
    print_report(report, output)
    return report.status


@dataclass(frozen=True)
class _Scaler:
    """The cluster that was read, and answers about it."""

    place: Place
    source: Source

    def report(self, given: Input, groups: Sequence[tuple[str, Template]], nodes: Sequence[str]) -> AutoscaleReport:
        """The answers about the pods and nodes. Raises InputError and ApiError."""
        source = self.source
        if given.demands and not groups:
            raise InputError(
                "no node group is known: give --group NAME=TEMPLATE (no node has the label of a group, such as"
                " eks.amazonaws.com/nodegroup)"
            )
        pods = [self._scale_up(demand, count, groups) for demand, count in _equal(given.demands)]
        found = [self._scale_down(name) for name in nodes]
        notes = [*source.warnings, *(source.notes if pods else ())]
        if found and self.place.connection is None:
            notes.append("files that `snapshot` wrote have no annotations and no local volumes, which keep nodes, too")
        return AutoscaleReport(
            source.where,
            pods,
            found,
            notes,
            (*given.unknown, *source.unknown, *source.unknown_of_pods),
            (*given.errors, *source.errors),
        )

    def groups(self, texts: Sequence[str]) -> list[tuple[str, Template]]:
        """The groups of --group, or those of the labels of clouds. Raises InputError."""
        if not texts:
            return [(name, self._copied(f"new-{name}", node)) for name, node in groups_of(self._nodes)]
        found = []
        for text in texts:
            name, equals, template = text.partition("=")
            if not equals or not name or not template:
                raise InputError(f"--group {text}: write NAME=TEMPLATE, such as big=h100x8")
            found.append((name, self._template(name, template)))
        return found

    @property
    def _nodes(self) -> Sequence[ClusterNode]:
        world = self.source.world
        if world is not None:
            return world.around.nodes
        return [ClusterNode(object_) for object_ in self.source.objects if isinstance(object_, Node)]

    @property
    def _cluster(self) -> Cluster:
        return Cluster.of(self.source.objects)

    def _template(self, group: str, template: str) -> Template:
        """The template that a word names: a node, a file with ResourceSlices, or a type of nodes. Raises InputError."""
        new = f"new-{group}"
        known = {node.name: node for node in self._nodes}
        if template in known:
            return self._copied(new, known[template])
        documents = _slices_of_file(template)
        if documents:
            objects = [decode_kept(document) for document in documents]
            slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
            node = next((object_ for object_ in objects if isinstance(object_, Node)), None)
            first = slices[0].node_name or ""
            plain = node or Node(replace(slices[0].metadata, name=first, labels={}))
            moved = [replace(slice_, node_name=plain.name) for slice_ in slices]
            return copied(new, ClusterNode(plain, _room()), moved)
        if is_node_type(template):
            made = simulated_nodes(template, 1)
            simulated = next(object_ for object_ in made if isinstance(object_, Node))
            return copied(
                new,
                ClusterNode(simulated, _room()),
                [object_ for object_ in made if isinstance(object_, ResourceSlice)],
            )
        raise InputError(
            f"--group {group}={template}: {self.source.where} has no such node, and there is no such file or type of"
            " nodes"
        )

    def _copied(self, name: str, node: ClusterNode) -> Template:
        world = self.source.world
        cluster = self._cluster
        return copied(name, node, cluster.slices, world.around.pods if world is not None else (), cluster.claims)

    def _scale_up(self, demand: Demand, count: int, groups: Sequence[tuple[str, Template]]) -> ScaleUp:
        source, features = self.source, self.place.features
        labels = OpenLabels(source.open_nodes)
        (now,) = evaluate([demand], source.objects, features, source.world, labels)
        if now.error:
            raise InputError(f"{demand.name}: {now.error}")
        name = demand.workload or demand.name
        if now.node is not None or not groups:
            return ScaleUp(name, count, now.node or "")
        answers = [self._answer(demand, group, template, features) for group, template in groups]
        return ScaleUp(name, count, "", tuple(answers))

    def _answer(self, demand: Demand, group: str, template: Template, features: Features) -> GroupAnswer:
        objects = [*self.source.objects, template.node.node, *template.slices, *template.claims]
        world = _with_template(self.source.world, template)
        (verdict,) = evaluate([demand], objects, features, world, OpenLabels(self.source.open_nodes))
        new = template.node.name
        if new in verdict.fitting:
            return GroupAnswer(group, takes=True)
        return GroupAnswer(group, takes=False, reason=_reason(verdict, new))

    def _scale_down(self, name: str) -> ScaleDown:
        node = next((node for node in self._nodes if node.name == name), None)
        if node is None:
            raise InputError(f"--node {name}: {self.source.where} has no such node")
        world, cluster = self.source.world, self._cluster
        if world is None:
            raise InputError(f"--node {name}: the pods of {self.source.where} are not known")
        pods = [pod for pod in world.around.pods if pod.node_name == name and not pod.ended]
        used = utilization(node, pods, cluster.slices, cluster.claims)
        raw = self._node(name)
        reasons = list(_node_reasons(raw, used))
        movable = []
        by_name = {(pod.namespace, pod.name): pod for pod in pods}
        for value in self._pods(name):
            metadata = within(value, "metadata")
            key = str(metadata.get("namespace") or "default"), str(metadata.get("name"))
            reason = blocker(value, world.around.budgets)
            if reason:
                reasons.append(f"pod {'/'.join(key)} may not be moved: {reason}")
            elif key in by_name and not is_skipped(value):
                movable.append(by_name[key])
        reasons += self._without_place(world, cluster, name, movable)
        return ScaleDown(name, group_of(node), used, tuple(reasons))

    def _without_place(self, world: World, cluster: Cluster, name: str, pods: Sequence[Pod]) -> Iterator[str]:
        """The pods of a node that fit on no other node."""
        features = self.place.features
        nodes = tuple(node for node in cluster.nodes if node.name != name)
        snapshot, successors = without_pods(world.at(replace(cluster, nodes=nodes), features), pods)
        placing = Placing(snapshot, features, OpenLabels(self.source.open_nodes))
        for pod in pods:
            place = placing.place(successor_of(pod), claims_of_successor(pod, successors))
            if not place.fits:
                yield f"pod {pod} fits on no other node: {place.reason}"

    def _pods(self, node: str) -> list[JSON]:
        if self.place.connection is not None:
            selector = f"spec.nodeName={node}"
            return list(ApiClient(self.place.connection).list(PODS, field_selector=selector).items)
        values = (document.value for document in self.place.documents if document.kind == "Pod")
        return [value for value in values if within(value, "spec").get("nodeName") == node]

    def _node(self, name: str) -> JSON:
        if self.place.connection is not None:
            try:
                return ApiClient(self.place.connection).get(NODES, name)
            except NotFoundError:
                return {}
        values = (document.value for document in self.place.documents if document.kind == "Node")
        return next((value for value in values if within(value, "metadata").get("name") == name), {})


def _node_reasons(node: JSON, used: Utilization) -> Iterator[str]:
    """Why a node is not looked at for removal."""
    if within(node, "metadata", "annotations").get(SCALE_DOWN_DISABLED) == "true":
        yield f'it has the annotation {SCALE_DOWN_DISABLED}: "true"'
    if used.value > THRESHOLD:
        yield f"more than {THRESHOLD:g} of {used.resource} is in use (--scale-down-utilization-threshold)"


def _equal(demands: Sequence[Demand]) -> Iterator[tuple[Demand, int]]:
    """The demands, equal pods of one workload once with their number."""
    found: dict[str, list[Demand]] = {}
    for demand in demands:
        found.setdefault(demand.workload or demand.name, []).append(demand)
    yield from ((members[0], len(members)) for members in found.values())


def _with_template(world: World | None, template: Template) -> World | None:
    if world is None:
        return None
    around = world.around
    around = replace(around, nodes=(*around.nodes, template.node), pods=(*around.pods, *template.pods))
    return replace(world, around=around)


def _room() -> dict[str, int]:
    """Allocatable resources of a node of which only the devices are known."""
    return dict.fromkeys(("cpu", "memory", "ephemeral-storage", "pods"), ROOM)


def _slices_of_file(name: str) -> list[Document]:
    """The ResourceSlices and Nodes of a file; none if it describes hardware, or if there is no file."""
    if not Path(name).is_file():
        return []
    documents = [document for document in read_all([name]).documents if document.kind in ("ResourceSlice", "Node")]
    return documents if any(document.kind == "ResourceSlice" for document in documents) else []


def _reason(verdict: Verdict, node: str) -> str:
    """Why a node does not take a demand, in one line."""
    if verdict.rejects:
        return "; ".join(verdict.rejects)
    for refused in verdict.refused:
        if node in refused.nodes or refused.explanation.fatal:
            explanation = refused.explanation
            requests = [f"request {request.text}" for request in explanation.requests if request.missing]
            return refused.one or explanation.error or "; ".join((*requests, *explanation.pools))
    return verdict.summary or "its devices cannot be given together"
