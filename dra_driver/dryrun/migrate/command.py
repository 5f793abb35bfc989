# SPDX-License-Identifier: Apache-2.0
"""The subcommand: what it reads of files or of a cluster, and how it prints and writes the plan."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

import click
from rich.text import Text

from ...domains.names import DRIVER as DOMAIN_DRIVER
from ...kube.api import NODES, ApiClient, Kind
from ...kube.resource.codec import DecodeError, Fields
from ...process.command import InputError, output_option
from ...process.streams import printable
from ...scheduler.allocator import Features
from ...scheduler.pods import PodDecoder, form_errors
from ...scheduler.pods.decode import decode_cluster_node
from ..answer import Answer
from ..documents import Document, each, in_namespace, read_all, within
from ..domains import with_templates
from ..groups import Library
from ..inventory import kinds
from ..options import Subcommand, complete_files, general_options, release_options
from ..progress import progress
from ..reduction import reduced_object
from ..release import Rules
from ..report import PlainTable, counted, listed, plain_console, to_json, to_yaml
from ..rights import Needs, advice
from ..snapshot import written
from ..sources import Origin, Place, cluster_options, lookup_among, opened
from ..status import Note, NotesError, Status, documents_of
from ..world import read_around
from .configs import GPU, is_configuration
from .nodes import BARE, Configurations, GpuNode, gpu_nodes, permitted_machines, programs
from .plan import MigrationPlan, plan_of
from .verify import verified
from .workloads import CANNOT, CHANGE, MACHINES, UNCHANGED, WorkloadFinding, findings, groups_of, unknown_of

JSON = dict[str, Any]

_KINDS: Final = {
    **{kind: Kind("apps/v1", f"{kind.lower()}s") for kind in ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")},
    **{kind: Kind("batch/v1", f"{kind.lower()}s") for kind in ("Job", "CronJob")},
    **{kind: Kind("v1", f"{kind.lower()}s") for kind in ("PodTemplate", "ReplicationController")},
    **{kind: Kind("kubevirt.io/v1", f"{kind.lower()}s") for kind in ("KubeVirt", *MACHINES)},
}
"""What is read of a cluster besides the objects of its world."""
_OF_OTHERS: Final = ("DeviceClass", "ResourceSlice")
_NEEDS: Final = Needs(whole_pods=True)
_CONFIG_MAP: Final = Kind("v1", "configmaps", namespaced=True)
_REPLACED: Final = ("plugin", "mps", "machines")
_COLORS: Final = {UNCHANGED: "bold green", CHANGE: "bold yellow", CANNOT: "bold red"}


@dataclass(frozen=True, slots=True)
class Migration:
    """All results: the plan, the verdicts on the workloads, and with --verify what they get."""

    where: str
    release: str
    plan: MigrationPlan
    replaced: tuple[str, ...]
    findings: tuple[WorkloadFinding, ...]
    notes: tuple[str, ...]
    answer: Answer | None
    unknown: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()

    @property
    def status(self) -> Status:
        """The exit status."""
        unknown = bool(self.unknown or (self.answer is not None and self.answer.unknown))
        return Status.of(fits=self.works, errors=bool(self.errors), unknown=unknown)

    @property
    def works(self) -> bool:
        """Whether every workload can run, and with --verify gets its devices."""
        return all(one.verdict != CANNOT for one in self.findings) and (self.answer is None or self.answer.fits)

    def files(self) -> dict[str, str]:
        """The files to install, by name."""
        changed = [value for one in self.findings for value in _objects(one)]
        found = {"values.yaml": to_yaml(self.plan.values) + "\n"}
        found |= {"device-classes.yaml": written(self.plan.manifests, "yaml")} if self.plan.manifests else {}
        return found | ({"workloads.yaml": written(changed, "yaml")} if changed else {})

    def document(self) -> JSON:
        """The results as plain dicts and lists."""
        return {
            "source": self.where,
            "kubernetesVersion": self.release,
            "nodes": [
                {"name": one.name, "gpus": _gpus(one), "configuration": one.config_name, "resources": _resources(one)}
                for one in self.plan.nodes
            ],
            "values": self.plan.values,
            "deviceClasses": list(self.plan.manifests),
            "needs": [{"featureGate": one.gate, "purpose": one.purpose, "met": one.met} for one in self.plan.needs],
            "replaced": list(self.replaced),
            "planNotes": list(self.notes),
            "notes": documents_of(self.unknown),
            "errors": documents_of(self.errors),
            "workloads": [
                {
                    "name": one.name,
                    "verdict": one.verdict,
                    "requests": dict(one.requests),
                    "reasons": list(one.reasons),
                    "notes": list(one.notes),
                    "diff": "\n".join(one.diff),
                    "objects": _objects(one),
                }
                for one in self.findings
            ],
            "verification": None if self.answer is None else self.answer.document(),
        }


@click.command(
    "migrate",
    cls=Subcommand,
    short_help="Plan the change from NVIDIA's device plugin to this driver.",
    examples=[
        "dra-dryrun migrate --verify",
        "dra-dryrun migrate cluster.yaml config.yaml pods/",
        "dra-dryrun migrate --write plan/ --context production",
    ],
)
@click.argument("files", nargs=-1, metavar="[FILE]...", shell_complete=complete_files)
@cluster_options
@release_options
@click.option("--verify", is_flag=True, help="Place the workloads on the devices that the plan would publish.")
@click.option("--write", "folder", metavar="DIR", default="", help="Write the values and manifests to this folder.")
@output_option(("table", "json", "yaml"), None, "How the plan is printed.")
@general_options
def migrate(files: tuple[str, ...], origin: Origin, rules: Rules, verify: bool, folder: str, output: str) -> int:
    """Plan the change from NVIDIA's device plugin (also that for KubeVirt) to this driver.

    FILE contains Nodes, DaemonSets and ConfigMaps of the device plugin and of mig-parted, workloads, and KubeVirt's
    objects. A configuration of the plugin or of mig-parted may also be a file of its own. Without FILE, the cluster is
    read. The command prints the values of the driver's chart, DeviceClasses for the plugin's resources, and what each
    workload needs. It changes nothing in the cluster.

    The exit status is 0 if every workload can run, 1 if one cannot, 2 if the input is wrong or cannot be read, and 3 if
    a workload was not evaluated as a whole.
    """
    if files:
        origin = Origin(asked=True, namespace=origin.namespace)
    elif origin.is_built_in:
        raise InputError("no cluster is configured: name FILEs, or set --kubeconfig or KUBECONFIG")
    with progress("reading") as say, opened(origin, rules, _NEEDS) as place:
        where = ", ".join(files) or place.where
        unread: tuple[Note, ...] = ()
        errors: tuple[Note, ...] = ()
        if files:
            documents, errors = _read(files, place.namespace)
        else:
            documents, unread = _read_cluster(place)
        say("planning")
        found = _migration(place, where, documents, place.features, verify=verify)
        found = replace(found, errors=errors, unknown=(*unread, *found.unknown))
    if folder:
        _write(folder, found.files())
    if output == "table":
        _print(found, folder)
    else:
        click.echo(to_json(found.document()) if output == "json" else "---\n" + to_yaml(found.document()))
    for error in found.errors:
        click.echo(printable(f"error: {error}"), err=True)
    return found.status


def _migration(
    place: Place, where: str, documents: Sequence[Document], features: Features, *, verify: bool
) -> Migration:
    theirs = programs(documents)
    nodes = list(gpu_nodes(documents, Configurations(documents, theirs)))
    if not nodes:
        known = f"a Node has the labels of GPU Feature Discovery, or {GPU} in status.allocatable"
        raise InputError(f"{where}: no Node with GPUs on which a device plugin runs ({known})")
    plan = plan_of(nodes, features)
    own = {id(one.document) for one in theirs}
    others = [one for one in documents if id(one) not in own]
    library = Library((one.value for one in others), place.referred)
    judged = tuple(findings(others, library, plan, permitted_machines(documents), features))
    made, errors = with_templates(documents)
    if errors:
        raise NotesError(*errors)
    lookup = lookup_among(made) if place.connection is None else place.lookup
    answer = verified(plan, judged, documents, library, lookup, where, features) if verify else None
    unknown = tuple(note for one in others for note in unknown_of(one, library))
    replaced = tuple(f"DaemonSet {one.document.name}" for one in theirs if one.role in _REPLACED)
    notes = (*plan.notes, *_competing(documents, plan), *_channels(documents))
    return Migration(where, features.release, plan, replaced, judged, notes, answer, unknown)


def _competing(documents: Sequence[Document], plan: MigrationPlan) -> Iterator[str]:
    """DeviceClasses that serve the same resources."""
    own = {one.metadata.name for one in plan.all_classes()}
    for one in documents:
        resource = within(one.value, "spec").get("extendedResourceName") if one.kind == "DeviceClass" else None
        if resource in plan.classes and one.name not in own:
            yield f"DeviceClass {one.name} serves {resource}, too: delete it, because the newest class counts"


def _channels(documents: Sequence[Document]) -> Iterator[str]:
    """Nodes on which a driver serves ComputeDomains already."""
    slices = [within(one.value, "spec") for one in documents if one.kind == "ResourceSlice"]
    names = sorted({str(one.get("nodeName")) for one in slices if one.get("driver") == DOMAIN_DRIVER})
    if names:
        yield (
            f"driver {DOMAIN_DRIVER} serves ComputeDomains on {listed(names)}. If this is NVIDIA's DRA driver, keep it"
            " with the value resources.computeDomains.enabled=false of this chart, or end its ComputeDomains and remove"
            " it first: a node can have one of them"
        )


def _read(files: Sequence[str], namespace: str) -> tuple[list[Document], tuple[Note, ...]]:
    """The documents of files, and errors about others. A configuration has the name of its file.

    Raises NotesError if there are only errors.
    """
    read = read_all(files, empty_lists=True, convert=_as_object)
    documents, errors = in_namespace(read.documents, namespace)
    errors = (*(one.note for one in read.problems), *errors)
    library = Library(one.value for one in documents)
    usable = []
    for one in documents:
        problems = list(_problems(one, library))
        errors += tuple(one.note(str(problem), problem.path) for problem in problems)
        usable += [] if problems else [one]
    if errors and not usable:
        raise NotesError(*errors)
    return usable, errors


def _problems(document: Document, library: Library) -> Iterator[DecodeError]:
    """Why the API server would reject a node or a workload."""
    yield from form_errors(document.value)
    try:
        if document.kind == "Node":
            decode_cluster_node(document.value)
            Fields(within(document.value, "metadata"), "metadata").required_text("name")
            return
        for group in groups_of(document, library):
            try:
                PodDecoder().decode({"spec": group.spec, "metadata": {}})
            except DecodeError as error:
                path = error.path.removeprefix("spec").removeprefix(".")
                yield DecodeError(group.place(path), error.problem)
    except DecodeError as error:
        yield error


def _as_object(value: object, source: str) -> object:
    if not is_configuration(value):
        return value
    name = PurePath(source.partition(", document")[0]).stem
    return {"apiVersion": "v1", "kind": BARE, "metadata": {"name": name}, "data": {name: json.dumps(value)}}


def _read_cluster(place: Place) -> tuple[list[Document], tuple[Note, ...]]:
    """What a cluster has, and notes about what may not be read. Of pods that others have made, only what decides
    scheduling. Raises ApiError, and InputError if nodes may not be listed.
    """
    assert place.connection is not None
    client = ApiClient(place.connection)
    around, forbidden = place.around(lambda one: dict(one) if _is_bare(one) else reduced_object(one))
    every = {**{name: kind for name, kind in kinds(client).items() if name in _OF_OTHERS}, **_KINDS}
    found, refused = read_around(client, every, dict)
    forbidden += [every[name].plural for name in refused]
    if NODES.plural in forbidden:
        raise InputError(
            f"not allowed to list {', '.join(forbidden)} ({place.connection.identity}); {advice((), _NEEDS)}"
        )
    said = f"not considered, as listing them is not allowed: {', '.join(forbidden)}"
    unread = (Note("", said),) if forbidden else ()
    documents = [Document(one, place.where, stored=True) for one in (*around, *(value for _, value in found))]
    for program in programs(documents):
        for namespace, name in program.config_maps() if program.role in ("plugin", "mig") else ():
            value = {**client.get(_CONFIG_MAP, name, namespace), "apiVersion": "v1", "kind": "ConfigMap"}
            documents.append(Document(value, place.where, stored=True))
    return documents, unread


def _is_bare(value: Mapping[str, Any]) -> bool:
    return value.get("kind") == "Pod" and not each(value, "metadata", "ownerReferences")


def _write(folder: str, files: Mapping[str, str]) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--write {folder}: {error.strerror}") from None


def _print(found: Migration, folder: str) -> None:
    console = plain_console()
    console.print(Text(f"{counted(len(found.plan.nodes), 'node')} with GPUs, from {found.where}", style="bold"))
    console.print(_nodes(found.plan.nodes))
    for need in found.plan.needs:
        missing = "" if need.met else f", which {found.release} has not enabled"
        console.print(
            Text(f"{need.purpose}: needs Kubernetes 1.36, or 1.34 with the feature gate {need.gate}{missing}")
        )
    notes = (*(f"note: {note}" for note in found.notes), *(f"not known: {note}" for note in found.unknown))
    for line in (*notes, *(f"to remove: {name}" for name in found.replaced)):
        console.print(Text(line))
    for one in found.findings:
        asks = ", ".join(f"{name} {count}" for name, count in one.requests.items())
        console.print(Text.assemble((one.verdict, _COLORS[one.verdict]), f"  {one.name}  {asks}".rstrip()))
        for line in (*one.reasons, *one.notes, *one.diff):
            console.print(Text(f"  {line}"))
    if not found.findings:
        console.print(Text("no workload uses GPUs"))
    for name, text in found.files().items():
        console.print(Text(f"written: {Path(folder) / name}" if folder else f"{name}:", style="bold"))
        for line in () if folder else text.splitlines():
            console.print(Text(f"  {line}"))
    if found.answer is not None:
        found.answer.print("table")


def _nodes(nodes: Sequence[GpuNode]) -> PlainTable:
    """A row for each group of equal nodes."""
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        resources = ", ".join(f"{name} {count}" for name, count in _resources(node).items())
        groups[_gpus(node), node.config_name or "-", resources].append(node.name)
    table = PlainTable("NODES", "GPUS", "CONFIGURATION", "RESOURCES")
    for cells, names in groups.items():
        table.add_row(listed(names), *cells)
    return table


def _gpus(node: GpuNode) -> str:
    """`8 x NVIDIA-A100-SXM4-40GB (7 x 1g.5gb)`, for each kind of GPU."""
    kinds = [f"{count} for virtual machines" for count, _ in node.machines.values()]
    for gpu, count in Counter(node.gpus).items():
        split = ", ".join(f"{number} x {profile}" for profile, number in Counter(gpu or ()).items())
        kinds.append(f"{count} x {node.product or 'GPU'}{f' ({split})' if split else ''}")
    return ", ".join(kinds)


def _resources(node: GpuNode) -> dict[str, int]:
    """The number of each resource that the device plugins offer on the node."""
    found = Counter({name: count for name, (count, _) in node.machines.items()})
    for gpu in node.gpus:
        for offer in node.offers_of(gpu):
            found[offer.resource] += Counter(gpu or ("",))[offer.which] * offer.shares
    return dict(found)


def _objects(one: WorkloadFinding) -> list[JSON]:
    return [*one.objects, *([one.changed] if one.changed is not None else [])]
