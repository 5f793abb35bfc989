# SPDX-License-Identifier: Apache-2.0
"""The result for each workload: no change, a change, or a feature that this driver does not have.

A pod runs unchanged if DeviceClasses serve the extended resources that it requests. If the cluster does not have
DRAExtendedResource, the change is a claim: a ResourceClaimTemplate, with a request for each container and resource. An
init container uses the devices of a later container, as it does with the device plugin.
"""

import copy
import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...kube.resource import Quantity
from ...kube.resource.codec import DecodeError
from ...scheduler.allocator import Features
from ..documents import Document, each, within
from ..groups import PodGroup, ReferencedObjects, key_of, pods_of
from ..kinds import KINDS, OF_KUBERNETES
from ..podforms import FORMS
from ..positions import resolve
from ..report import listed, to_yaml
from ..status import Note
from .configs import GPU, PREFIX, SHARED, environment, profile_of
from .labels import STRATEGY
from .owners import Owner, identities, identity_of, owner_of, places_in
from .plan import MigrationPlan, api_version

JSON = dict[str, Any]

UNCHANGED: Final = "runs unchanged"
CHANGE: Final = "needs a change"
CANNOT: Final = "cannot run"

MACHINES: Final = ("VirtualMachineInstance", "VirtualMachineInstanceReplicaSet", "VirtualMachine")
"""Kinds of KubeVirt that are read of a cluster."""
_OF_MACHINES: Final = ("kubevirt.io", "pool.kubevirt.io")
_CLAIM: Final = "nvidia-gpus"
"""The name of the claim in a changed pod."""
_DISCOVERED: Final = re.compile(
    rf"{PREFIX}(gpu\.(?!deploy\.|present|workload\.)|mig-|mig\.(capable|strategy)|cuda\.|mps\.|vgpu\.).*"
)
"""Labels that GPU Feature Discovery writes."""
_MIG_PRODUCT: Final = re.compile(r".+-MIG-([0-9]+g\.[0-9]+gb(?:\.me)?)(?:-SHARED)?")
_SERVERS: Final = ("managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "ownerReferences")
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_LONGEST_NAME: Final = 63
_NEEDS_CLAIM: Final = "without DRAExtendedResource, no DeviceClass serves extended resources: it needs a claim"

_WORKLOADS: Final = frozenset(kind for group, kind in KINDS if group in OF_KUBERNETES)
"""Kinds of Kubernetes that are read of a cluster. If an owner of such a kind is gone, its pods are about to be."""


@dataclass(frozen=True, slots=True)
class Request:
    """`count` of a resource for the `container` of a pod, or for a device of a machine. `passing`: an init container
    that ends before the others start.
    """

    container: JSON
    resource: str
    count: int
    passing: bool = False

    @property
    def name(self) -> str:
        """The name of the request in a claim."""
        name = f"{self.container.get('name')}-{self.resource.removeprefix(PREFIX)}"
        return re.sub("[^a-z0-9-]+", "-", name.lower())[:_LONGEST_NAME].strip("-")


@dataclass(frozen=True, slots=True)
class WorkloadFinding:
    """The verdict on a workload. `reasons` tell why it needs the change or cannot run; `changed` is the new object, and
    `objects` are needed besides.

    With an `owner`, which was not read, the verdict is about the owner: `members` are the verdicts on the objects that
    its controller made, of which nothing is to be applied.
    """

    document: Document
    verdict: str
    requests: Mapping[str, int]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changed: JSON | None = None
    objects: tuple[JSON, ...] = ()
    owner: Owner | None = None
    members: tuple["WorkloadFinding", ...] = ()

    @property
    def name(self) -> str:
        """The workload as messages name it: by its owner, or by kind and name."""
        return str(self.owner or f"{self.document.kind} {self.document.name}")

    @property
    def is_fixed(self) -> bool:
        """Whether the pods' spec in the object cannot be changed, so that the object is deleted and created again."""
        return self.document.kind in ("Pod", "Job") and key_of(self.document.value)[0] in OF_KUBERNETES

    def planned(self) -> Iterator[tuple[Document, JSON]]:
        """The objects that are to run, with what they were made from. Nothing that cannot run, or has no GPUs."""
        if self.members:
            for member in self.members:
                yield from member.planned()
        elif self.requests and self.verdict != CANNOT:
            value = self.changed or manifest(self.document.value)
            yield from ((self.document, made) for made in (value, *self.objects))

    def documents(self) -> Iterator[Document]:
        """The objects that the verdict is about."""
        if self.members:
            yield from (member.document for member in self.members)
        else:
            yield self.document

    @property
    def diff(self) -> list[str]:
        """The change as a unified diff of the two manifests."""
        if self.changed is None:
            return []
        old, new = (to_yaml(version).splitlines() for version in (manifest(self.document.value), self.changed))
        return list(difflib.unified_diff(old, new, self.name, self.name, lineterm="", n=2))


def findings(
    documents: Sequence[Document],
    library: ReferencedObjects,
    plan: MigrationPlan,
    permitted: Mapping[str, str],
    features: Features,
) -> Iterator[WorkloadFinding]:
    """The workloads that use GPUs, with their verdicts. `permitted` are the GPUs that KubeVirt permits.

    Raises DecodeError.
    """
    present = identities(documents)
    present |= {
        identity_of(document)
        for document in documents
        if key_of(document.value) not in KINDS and requests_gpus(document, library)
    }
    owned: dict[Owner, list[WorkloadFinding]] = defaultdict(list)
    for document in documents:
        found = None
        if document.kind == "KubeVirt":
            found = _permission(document, plan)
        elif not _is_made(document, present):
            found = _Workload(document, groups_of(document, library), plan, permitted, features).finding()
        owner = owner_of(document)
        if found is not None and owner is not None:
            owned[owner].append(found)
        elif found is not None:
            yield found
    for owner, members in owned.items():
        yield _of_owner(owner, members)


def _of_owner(owner: Owner, members: Sequence[WorkloadFinding]) -> WorkloadFinding:
    """The verdict on an owner that was not read, from those on the objects that its controller made."""
    verdict = next(
        possible for possible in (CANNOT, CHANGE, UNCHANGED) if any(member.verdict == possible for member in members)
    )
    totals: Counter[str] = Counter()
    for member in members:
        totals.update(member.requests)
    names = listed([member.name for member in members])
    reasons = dict.fromkeys(reason for member in members for reason in member.reasons)
    if verdict == CHANGE:
        paths = dict.fromkeys(path for member in members for path in places_in(owner, member.document))
        place = f"in {' and '.join(paths)}" if paths else "where it describes its pods"
        reasons[
            f"change {owner} {place}, not {names}: its controller makes them again. For the diff, add the object:"
            f" kubectl get {owner.resource} {owner.name} -n {owner.namespace} -o yaml"
        ] = None
    notes = dict.fromkeys(
        (f"known by what its controller made: {names}", *(n for member in members for n in member.notes))
    )
    return WorkloadFinding(
        members[0].document, verdict, totals, tuple(reasons), tuple(notes), owner=owner, members=tuple(members)
    )


def requests_gpus(document: Document, library: ReferencedObjects) -> bool:
    """Whether pods of the object request extended resources of NVIDIA's. False for an object that cannot be read."""
    try:
        return any(True for group in groups_of(document, library) for _ in _requests(group.spec))
    except DecodeError:
        return False


def groups_of(document: Document, library: ReferencedObjects) -> list[PodGroup]:
    """The pods of an object, except those of which nothing is known. Raises DecodeError."""
    return [group for group in pods_of(document.value, library, FORMS).groups if group.spec]


def unknown_of(document: Document, library: ReferencedObjects) -> Iterator[Note]:
    """Notes about unknown parts of an object's pods that may use GPUs. Raises DecodeError."""
    reading = pods_of(document.value, library, FORMS)
    texts = [*reading.unknown]
    for group in reading.groups:
        if not group.spec or any(_requests(group.spec)):
            texts += group.unknown
    yield from (document.note(text) for text in dict.fromkeys(texts))


def is_machine(value: JSON) -> bool:
    """Whether the object is a virtual machine, or makes some."""
    return key_of(value)[0] in _OF_MACHINES


def uses_gpus(value: JSON) -> bool:
    """Whether a pod requests extended resources of NVIDIA's."""
    return any(_requests(within(value, "spec")))


def _requests(spec: JSON) -> Iterator[Request]:
    """The extended resources of NVIDIA's that a pod requests."""
    for field in ("initContainers", "containers"):
        for container in each(spec, field):
            passing = field == "initContainers" and container.get("restartPolicy") != "Always"
            wanted = {**within(container, "resources", "limits"), **within(container, "resources", "requests")}
            counts = {
                name: Quantity.parse(str(wanted[name])).value for name in sorted(wanted) if name.startswith(PREFIX)
            }
            yield from (Request(container, name, count, passing) for name, count in counts.items() if count)


def manifest(value: JSON) -> JSON:
    """The object as a user would submit it: without what the API server and the scheduler have added."""
    metadata = {name: field for name, field in within(value, "metadata").items() if name not in _SERVERS}
    if _APPLIED in within(metadata, "annotations"):
        annotations = metadata["annotations"].items()
        metadata["annotations"] = {name: annotation for name, annotation in annotations if name != _APPLIED}
    found = copy.deepcopy({**value, "metadata": metadata})
    phase = within(found.pop("status", None)).get("phase")
    if value["kind"] == "Pod" and phase:
        found["spec"].pop("nodeName", None)
    return found


def _is_made(document: Document, present: Collection[tuple[str, str, str, str]]) -> bool:
    """Whether another workload has made it, or it has ended. `present` are the workloads that there are."""
    value = document.value
    ended = value["kind"] == "Pod" and within(value, "status").get("phase") in ("Succeeded", "Failed")
    conditions = each(value, "status", "conditions") if value["kind"] == "Job" else []
    ended |= any(
        condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in conditions
    )
    owners = each(value, "metadata", "ownerReferences")
    named = [(*key_of(owner), document.namespace, str(owner.get("name"))) for owner in owners]
    of_kubernetes = any(key_of(owner)[0] in OF_KUBERNETES and owner.get("kind") in _WORKLOADS for owner in owners)
    return ended or of_kubernetes or any(name in present for name in named)


def _permission(document: Document, plan: MigrationPlan) -> WorkloadFinding | None:
    """The setting that tells KubeVirt that another program offers the GPUs that it permits."""
    changed = manifest(document.value)
    devices = each(changed, "spec", "configuration", "permittedHostDevices", "pciHostDevices")
    served = [device for device in devices if str(device.get("resourceName")) in plan.classes]
    missing = [device for device in served if device.get("externalResourceProvider") is not True]
    for device in missing:
        device["externalResourceProvider"] = True
    names = ", ".join(str(device["resourceName"]) for device in missing)
    reason = f"KubeVirt would offer {names} itself, beside this driver"
    return WorkloadFinding(document, CHANGE, {}, (reason,), changed=changed) if missing else None


class _Workload:
    """One workload while it is judged."""

    def __init__(
        self,
        document: Document,
        groups: Sequence[PodGroup],
        plan: MigrationPlan,
        permitted: Mapping[str, str],
        features: Features,
    ) -> None:
        self._document, self._plan, self._permitted, self._features = document, plan, permitted, features
        self._machine = is_machine(document.value)
        self._groups = groups
        self._requests = [
            request for group in groups for request in _requests(group.spec) if self._is_gpu(request.resource)
        ]

    def finding(self) -> WorkloadFinding | None:
        """The verdict, None if the workload has nothing to do with GPUs."""
        notes = tuple(self._notes())
        totals: Counter[str] = Counter()
        for request in self._requests:
            totals[request.resource] += request.count
        if problems := tuple(dict.fromkeys(self._problems())):
            return WorkloadFinding(self._document, CANNOT, totals, problems, notes)
        changed = manifest(self._document.value)
        reasons: dict[str, None] = {}
        objects: list[JSON] = []
        by_hand = False
        for group in self._groups:
            spec = _editable(changed, group)
            requests = [request for request in _requests(group.spec) if self._is_gpu(request.resource)]
            if not requests:
                continue
            if spec is not None and (node := spec.pop("nodeName", None)) is not None:
                spec.setdefault("nodeSelector", {})["kubernetes.io/hostname"] = node
                reasons["nodeName bypasses the scheduler, which allocates the GPUs"] = None
            if not self._features.extended_resources:
                reasons[_NEEDS_CLAIM] = None
                if spec is None:
                    by_hand = True
                    reasons[f"{group.path} is no pod template: add the claim by hand"] = None
                else:
                    objects.append(self._claim(changed, spec, group.role))
        if reasons:
            shown = None if by_hand else changed
            return WorkloadFinding(self._document, CHANGE, totals, tuple(reasons), notes, shown, tuple(objects))
        return WorkloadFinding(self._document, UNCHANGED, totals, (), notes) if notes or totals else None

    def _is_gpu(self, resource: str) -> bool:
        named = resource.removesuffix(SHARED) == GPU or profile_of(resource) is not None
        return named or resource in self._plan.classes or resource in self._permitted or self._machine

    def _problems(self) -> Iterator[str]:
        owners = each(self._document.value, "metadata", "ownerReferences")
        if self._requests and any(owner.get("kind") == "Node" for owner in owners):
            yield "it is a static pod: kubelet starts it without the scheduler, which allocates the GPUs"
        if self._requests and self._machine and not self._features.extended_resources:
            yield "without DRAExtendedResource, the machine has to name a claim (docs/how-to/virtual-machines.md)"
        for request in self._requests:
            if self._permitted.get(request.resource) == "":
                yield f"{request.resource} is a virtual GPU (mediated device), for which the plan has no DeviceClass"
            elif request.resource not in self._plan.classes:
                yield f"no node offers {request.resource} (the nodes offer {', '.join(self._plan.classes)})"

    def _notes(self) -> Iterator[str]:
        selected = self._selected_labels()
        of_single = self._notes_of_single(selected)
        labels = sorted(name for name in selected if _DISCOVERED.fullmatch(name) and name not in of_single)
        yield from of_single.values()
        if labels:
            text = "let GPU Feature Discovery run, with its configuration, or set nodeLabels of this driver's chart"
            yield f"it selects nodes by {', '.join(labels)}: {text}"
        using = [request.container for request in self._requests]
        for container in (container for group in self._groups for container in each(group.spec, "containers")):
            visible = environment(container).get("NVIDIA_VISIBLE_DEVICES", "")
            if visible not in ("", "void", "none") and container not in using:
                yield (
                    f"container {container.get('name')} gets GPUs by NVIDIA_VISIBLE_DEVICES={visible}, which no driver"
                    " counts: that works only with NVIDIA's container runtime"
                )
        schedulers = dict.fromkeys(group.spec.get("schedulerName") or "default-scheduler" for group in self._groups)
        for scheduler in schedulers:
            if self._requests and scheduler != "default-scheduler":
                yield f"its scheduler {scheduler} must know DRA and extended resources of DeviceClasses"
        is_bare = self._document.kind == "Pod" and owner_of(self._document) is None
        if self._requests and is_bare and within(self._document.value, "status").get("phase"):
            yield "nothing creates this pod again after its node was drained"

    def _notes_of_single(self, selected: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Labels that only GPU Feature Discovery with the strategy `single` writes, and how to do without them."""
        found: dict[str, str] = {}
        for value in selected.get(f"{GPU}.product", ()):
            if (profile := _MIG_PRODUCT.fullmatch(value)) is not None:
                other = f"{PREFIX}mig-{profile[1]}.product={value}"
                found[f"{GPU}.product"] = (
                    f"only GPU Feature Discovery with the strategy single writes {GPU}.product={value}: either keep it"
                    f" with its configuration, or select {other}, which nodeLabels of this driver's chart writes, too"
                )
        if "single" in selected.get(STRATEGY, ()):
            found[STRATEGY] = f"nodeLabels of this driver's chart always writes {STRATEGY}=mixed: do not select single"
        return found

    def _selected_labels(self) -> dict[str, list[str]]:
        """The labels by which it selects nodes, with the values that they may have."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, values in self._expressions():
            found[name] += values
        return found

    def _expressions(self) -> Iterator[tuple[str, list[str]]]:
        for spec in (group.spec for group in self._groups):
            for name, value in within(spec, "nodeSelector").items():
                yield name, [str(value)]
            affinity = within(spec, "affinity", "nodeAffinity")
            required = each(affinity, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
            preferred = each(affinity, "preferredDuringSchedulingIgnoredDuringExecution")
            for term in (*required, *(within(preference, "preference") for preference in preferred)):
                for expression in each(term, "matchExpressions"):
                    values = expression.get("values")
                    wanted = [str(value) for value in values] if isinstance(values, list) else []
                    yield str(expression.get("key")), wanted if expression.get("operator") == "In" else []

    def _claim(self, changed: JSON, spec: JSON, role: str) -> JSON:
        """Let the pods use a claim instead of extended resources. Returns the template of the claim."""
        metadata = changed["metadata"]
        every = [request for request in _requests(spec) if self._is_gpu(request.resource)]
        lasting = [request for request in every if not request.passing]
        wanted = {request.name: request for request in lasting}
        for request in every:
            later = (
                by
                for by in lasting
                if request.passing and by.resource == request.resource and by.count >= request.count
            )
            used = next(later, request)
            wanted[used.name] = used
            _replace(request.container["resources"], request.resource, used.name)
        owner = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
        name = "-".join(filter(None, (owner, re.sub("[^a-z0-9-]+", "-", role.lower()), "gpus")))
        spec.setdefault("resourceClaims", []).append({"name": _CLAIM, "resourceClaimTemplateName": name})
        self._tolerate(spec, {request.resource for request in every})
        requests = [{"name": name, "exactly": self._exactly(request)} for name, request in wanted.items()]
        namespace = {"namespace": metadata["namespace"]} if "namespace" in metadata else {}
        return {
            "apiVersion": api_version(self._features),
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, **namespace},
            "spec": {"spec": {"devices": {"requests": requests}}},
        }

    def _exactly(self, device_request: Request) -> JSON:
        exactly: JSON = {"deviceClassName": self._plan.classes[device_request.resource].metadata.name}
        return {**exactly, "count": device_request.count} if device_request.count > 1 else exactly

    def _tolerate(self, spec: JSON, resources: set[str]) -> None:
        """Add the tolerations that the admission plugin ExtendedResourceToleration no longer adds."""
        taints = (taint for node in self._plan.nodes for taint in each(node.value, "spec", "taints"))
        tolerated = {toleration.get("key") for toleration in each(spec, "tolerations")}
        missing = sorted(({str(taint.get("key")) for taint in taints} & resources) - tolerated)
        if missing and None not in tolerated:
            added = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in missing]
            spec["tolerations"] = [*each(spec, "tolerations"), *added]


def _editable(changed: JSON, group: PodGroup) -> JSON | None:
    """The spec of the pods in the object, None if the object has it in another form."""
    steps, whole = resolve(changed, group.path)
    found: Any = changed
    for step in steps:
        found = found[step]
    is_spec = whole and not group.moved and isinstance(found, dict) and isinstance(found.get("containers"), list)
    return found if is_spec else None


def _replace(resources: JSON, resource: str, request: str) -> None:
    for field in ("limits", "requests"):
        amounts = {name: value for name, value in (resources.pop(field, None) or {}).items() if name != resource}
        if amounts:
            resources[field] = amounts
    resources.setdefault("claims", []).append({"name": _CLAIM, "request": request})
