# SPDX-License-Identifier: Apache-2.0
"""All results of `migrate`: how they are found, and what is printed and written of them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from ...domains.names import DRIVER as DOMAIN_DRIVER
from ...kube.releases import known_since, on_since
from ...process.command import InputError
from ...scheduler.allocator import Features
from ..answer import Answer
from ..documents import Document, within
from ..domains import with_templates
from ..groups import ReferencedObjects
from ..report import Json, Line, PlainTable, Verbatim, counted, listed, to_json, to_yaml
from ..snapshot import written
from ..sources import Place, lookup_among
from ..status import ExitStatus, Note, NotesError, documents_of
from .configs import GPU
from .gpu_operator import GpuOperator, device_plugin_of, gpu_cluster_notes, is_of_operator, operator_of
from .nodes import GpuNode, gpu_nodes, nodes_of_auto_mode, permitted_machines
from .owners import identity_of, unread_notes
from .plan import MigrationPlan, plan_of
from .programs import Configurations, NvidiaDaemonSet, operated_by, programs
from .quotas import quota_findings
from .reading import MigrationInput
from .steps import RECREATED, WORKLOADS, Change, MigrationStep, as_markdown
from .verify import ClusterBefore, planned_slices, verified
from .workloads import CANNOT, CHANGE, UNCHANGED, WorkloadFinding, findings, manifest, unknown_of

JSON = dict[str, Any]

_REPLACED: Final = ("plugin", "mps", "machines")
_COLORS: Final = {UNCHANGED: "bold green", CHANGE: "bold yellow", CANNOT: "bold red"}


@dataclass(frozen=True, slots=True)
class Migration:
    """All results: the plan, the verdicts on the workloads, and with --verify what they get."""

    where: str
    release: str
    plan: MigrationPlan
    operator: GpuOperator | None
    replaced: tuple[str, ...]
    findings: tuple[WorkloadFinding, ...]
    notes: tuple[str, ...]
    answer: Answer | None
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    steps: tuple[MigrationStep, ...] = ()
    folder: str = ""
    """Where the files were written. Empty if they are to be printed."""

    @property
    def status(self) -> ExitStatus:
        """The exit status."""
        unknown = bool(self.unknown or (self.answer is not None and self.answer.unknown))
        return ExitStatus.of(fits=self.works, errors=bool(self.errors), unknown=unknown)

    @property
    def works(self) -> bool:
        """Whether every workload can run, and with --verify gets its devices."""
        return all(finding.verdict != CANNOT for finding in self.findings) and (self.answer is None or self.answer.fits)

    def files(self) -> dict[str, str]:
        """The files to install and to restore, and the steps, by name."""
        found = {"values.yaml": to_yaml(self.plan.values) + "\n"}
        if self.operator is not None and (changes := self.operator.changes(self.plan.nodes)):
            found["operator-values.yaml"] = to_yaml(changes) + "\n"
        found |= _manifests("device-classes.yaml", self.plan.manifests)
        found |= _manifests("claim-templates.yaml", [value for finding in self.findings for value in finding.objects])
        for name, fixed in ((WORKLOADS, False), (RECREATED, True)):
            changed = [
                finding for finding in self.findings if finding.changed is not None and finding.is_fixed == fixed
            ]
            found |= _manifests(
                f"{name}.yaml", [workload.changed for workload in changed if workload.changed is not None]
            )
            found |= _manifests(f"{name}-before.yaml", [manifest(workload.document.value) for workload in changed])
        return found | ({"steps.md": as_markdown(self.steps)} if self.steps else {})

    def document(self) -> Json:
        """The results as plain dicts and lists."""
        return {
            "source": self.where,
            "kubernetesVersion": self.release,
            "nodes": [
                {
                    "name": node.name,
                    "gpus": _gpus(node),
                    "configuration": node.config_name,
                    "resources": node.resources(),
                }
                for node in self.plan.nodes
            ],
            "values": self.plan.values,
            "deviceClasses": list(self.plan.manifests),
            "needs": [{"featureGate": need.gate, "purpose": need.purpose, "met": need.met} for need in self.plan.needs],
            "replaced": list(self.replaced),
            "gpuOperator": None
            if self.operator is None
            else {"clusterPolicy": self.operator.name, "values": self.operator.changes(self.plan.nodes)},
            "steps": [step.document() for step in self.steps],
            "planNotes": list(self.notes),
            "notes": documents_of(self.unknown),
            "errors": documents_of(self.errors),
            "workloads": [
                {
                    "name": finding.name,
                    "verdict": finding.verdict,
                    "requests": dict(finding.requests),
                    "reasons": list(finding.reasons),
                    "notes": list(finding.notes),
                    "diff": "\n".join(finding.diff),
                    "objects": _objects(finding),
                }
                for finding in self.findings
            ],
            "verification": None if self.answer is None else self.answer.document(),
        }

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """The plan for a terminal. `wide` has a row for each node."""
        yield Text(f"{counted(len(self.plan.nodes), 'node')} with GPUs, from {self.where}", style="bold")
        yield _nodes(self.plan.nodes, apart=wide)
        for need in self.plan.needs:
            missing = "" if need.met else f", which {self.release} has not enabled"
            yield Text(
                f"{need.purpose}: needs Kubernetes 1.{on_since(need.gate)}, or 1.{known_since(need.gate)} with the"
                f" feature gate {need.gate}{missing}"
            )
        yield from (Text(f"note: {note}") for note in self.notes)
        yield from (Text(f"not known: {note}") for note in self.unknown)
        yield from (Text(f"to remove: {name}") for name in self.replaced)
        for finding in self.findings:
            asks = ", ".join(f"{name} {count}" for name, count in finding.requests.items())
            yield Text.assemble((finding.verdict, _COLORS[finding.verdict]), f"  {finding.name}  {asks}".rstrip())
            yield from (Text(f"  {line}") for line in (*finding.reasons, *finding.notes, *finding.diff))
        if not self.findings:
            yield Text("no workload uses GPUs")
        for name, text in self.files().items():
            yield Text(f"written: {Path(self.folder) / name}" if self.folder else f"{name}:", style="bold")
            if not self.folder:
                yield from (Verbatim(f"  {line}".rstrip()) for line in text.splitlines())
        if self.answer is not None:
            yield from self.answer.lines(wide=wide)


def migration_of(place: Place, where: str, read: MigrationInput, features: Features, *, verify: bool) -> Migration:
    """All results for the objects. Raises InputError, DecodeError, and with --verify the exceptions of `verified`."""
    documents = read.documents
    found, operator = _programs(documents)
    nodes = list(gpu_nodes(documents, Configurations(documents, found)))
    if not nodes:
        known = f"a Node has the labels of GPU Feature Discovery or of a cloud, or {GPU} in status.allocatable"
        notes = "".join(f"; {note}" for note in gpu_cluster_notes(documents))
        raise InputError(f"{where}: no Node with GPUs on which a device plugin runs ({known}){notes}")
    plan = plan_of(nodes, features, operator)
    own = {id(program.document) for program in found}
    others = [document for document in documents if id(document) not in own and not is_of_operator(document)]
    library = ReferencedObjects((other.value for other in others), place.referred)
    judged = (
        *findings(others, library, plan, permitted_machines(documents), features),
        *quota_findings(documents, plan, features),
    )
    made, errors = with_templates(documents)
    if errors:
        raise NotesError(*errors)
    lookup = lookup_among(made) if place.connection is None else place.lookup
    before = ClusterBefore(documents, library, lookup, where)
    answer = verified(plan, judged, before, features) if verify else None
    owners = [verdict.owner for verdict in judged if verdict.owner is not None and verdict.requests]
    migration = Migration(
        where=where,
        release=features.release,
        plan=plan,
        operator=operator,
        replaced=tuple(map(_replaced, (program for program in found if program.role in _REPLACED))),
        findings=judged,
        notes=(*plan.notes, *_notes(documents, plan)),
        answer=answer,
        unknown=(
            *read.unread,
            *unread_notes(owners, {identity_of(document) for document in documents}, read.forbidden),
            *(Note(f"Node {node.name}", text) for node in nodes for text in node.unknown),
            *(note for other in others for note in unknown_of(other, library)),
            *(_of_memory(documents, nodes) if verify else ()),
        ),
        errors=read.errors,
    )
    change = Change(nodes, tuple(planned_slices(plan, features)), found, operator, judged, tuple(migration.files()))
    return replace(migration, steps=tuple(change.steps()))


def _programs(documents: Sequence[Document]) -> tuple[list[NvidiaDaemonSet], GpuOperator | None]:
    """NVIDIA's DaemonSets and the operator. A DaemonSet that the GPU Operator creates is included if it is not in the
    input.
    """
    found = programs(documents)
    operator = operator_of(documents, found)
    if operator is not None and not any(program.role == "plugin" for program in found):
        made = device_plugin_of(operator, documents)
        found += programs([made] if made is not None else [])
    return found, operator


def _notes(documents: Sequence[Document], plan: MigrationPlan) -> Iterator[str]:
    """Notes about objects beside those of the device plugin."""
    yield from gpu_cluster_notes(documents)
    yield from _of_auto_mode(documents)
    yield from _competing(documents, plan)
    yield from _channels(documents)


def _replaced(program: NvidiaDaemonSet) -> str:
    """The object to remove: a DaemonSet, or a component of the GPU Operator, which would create its DaemonSet again."""
    component = {"plugin": "devicePlugin", "mps": "devicePlugin", "machines": "sandboxDevicePlugin"}[program.role]
    name = f"DaemonSet {program.document.name}"
    policy = operated_by(program)
    return f"{component}.enabled=false in ClusterPolicy {policy}, which has {name}" if policy else name


def _of_memory(documents: Sequence[Document], nodes: Sequence[GpuNode]) -> Iterator[Note]:
    """Notes about claims and classes that ask for memory, if the memory of some GPUs is not known."""
    names = [node.name for node in nodes if node.gpus and not node.facts.memory_mib]
    kinds = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass")
    for document in documents if names else ():
        if document.kind in kinds and "memory" in to_json(within(document.value, "spec")):
            yield document.note(f"it asks for memory, and that of the GPUs of {listed(names)} is not known")


def _of_auto_mode(documents: Sequence[Document]) -> Iterator[str]:
    """Nodes that keep the device plugin, because their provider manages it."""
    if names := nodes_of_auto_mode(documents):
        yield (
            f"{listed(names)}: EKS Auto Mode manages the node and its device plugin, and does not support DRA (AWS in"
            " 2026): it is left out. Its workloads stay there, or move to nodes of a managed node group"
        )


def _competing(documents: Sequence[Document], plan: MigrationPlan) -> Iterator[str]:
    """DeviceClasses that serve the same resources."""
    own = {class_.metadata.name for class_ in plan.all_classes()}
    for document in documents:
        resource = (
            within(document.value, "spec").get("extendedResourceName") if document.kind == "DeviceClass" else None
        )
        if resource in plan.classes and document.name not in own:
            yield f"DeviceClass {document.name} serves {resource}, too: delete it, because the newest class counts"


def _channels(documents: Sequence[Document]) -> Iterator[str]:
    """Nodes on which a driver serves ComputeDomains already."""
    slices = [within(document.value, "spec") for document in documents if document.kind == "ResourceSlice"]
    names = sorted({str(slice_.get("nodeName")) for slice_ in slices if slice_.get("driver") == DOMAIN_DRIVER})
    if names:
        yield (
            f"driver {DOMAIN_DRIVER} serves ComputeDomains on {listed(names)}. If this is NVIDIA's DRA driver, keep it"
            " with the value resources.computeDomains.enabled=false of this chart, or end its ComputeDomains and remove"
            " it first: a node can have one of them"
        )


def _nodes(nodes: Sequence[GpuNode], *, apart: bool) -> PlainTable:
    """A row for each group of equal nodes, or with `apart` for each node."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        resources = ", ".join(f"{name} {count}" for name, count in node.resources().items())
        groups[_gpus(node), node.config_name, resources].append(node.name)
    table = PlainTable("Nodes", "GPUs", "Configuration", "Resources")
    for cells, names in groups.items():
        for name in names if apart else [listed(names)]:
            table.add_row(name, *cells)
    return table


def _gpus(node: GpuNode) -> str:
    """`8 x NVIDIA-A100-SXM4-40GB (7 x 1g.5gb)`, for each kind of GPU."""
    kinds = [f"{count} for virtual machines" for count, _ in node.machines.values()]
    for gpu, count in Counter(node.gpus).items():
        split = ", ".join(f"{number} x {profile}" for profile, number in Counter(gpu or ()).items())
        kinds.append(f"{count} x {node.product or 'GPU'}{f' ({split})' if split else ''}")
    return ", ".join(kinds)


def _manifests(name: str, values: Sequence[JSON]) -> dict[str, str]:
    """The file with the objects, by its name. Empty without objects."""
    return {name: written(values, "yaml")} if values else {}


def _objects(finding: WorkloadFinding) -> list[JSON]:
    return [*finding.objects, *([finding.changed] if finding.changed is not None else [])]
