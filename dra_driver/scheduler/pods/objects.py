# SPDX-License-Identifier: Apache-2.0
"""The objects that decide whether a pod can be scheduled, reduced to the fields that decide it, and label selectors.

A cluster has tens of thousands of pods: each is read once (`decode`), and only these fields of it are kept. Taints and
tolerations of nodes have the fields of those of devices, so `resource`'s types are used for both. Label selectors
follow apimachinery's `metav1.LabelSelectorAsSelector` and `labels.Requirement`.

Extended resources (`nvidia.com/gpu: 2`) that a DeviceClass serves become the claim that the scheduler makes of them. A
class serves the resource that it names in extendedResourceName, and always
`deviceclass.resource.kubernetes.io/<its name>`. Of several classes the newest counts. Follows Kubernetes'
`pkg/scheduler/framework/plugins/dynamicresources/extended`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...kube.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    DeviceRequirements,
    DeviceTaint,
    DeviceToleration,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    ObjectMeta,
    Quantity,
    ResourceClaim,
)
from ...kube.resource.claim import CLASS_RESOURCE_PREFIX
from ...kube.resource.codec import Fields
from ...kube.resource.meta import empty
from ..allocator.nodes import label_matches

_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")

Amounts = Mapping[str, int]
"""Resources as the scheduler counts them: CPU in thousandths, the rest in whole units, each rounded up."""


@dataclass(frozen=True, slots=True)
class ExtendedRequest:
    """`count` of a resource for the container `index` (init containers first).

    `request` is the name of the request in the scheduler's claim. Later containers use the devices of a `short_lived`
    container (an init container that is not a sidecar) again.
    """

    index: int
    request: str
    resource: str
    count: int
    short_lived: bool = False


def claim_for(
    requests: Iterable[ExtendedRequest], metadata: ObjectMeta, serving: Mapping[str, DeviceClass]
) -> ResourceClaim:
    """The claim that the scheduler makes for a pod, with requests in the order of their names, as text.

    `serving` is the class that serves each of the resources.
    """
    by_resource: dict[str, list[ExtendedRequest]] = {}
    for request in requests:
        by_resource.setdefault(request.resource, []).append(request)
    wanted = [
        DeviceRequest(name, exactly=DeviceRequirements(serving[resource].metadata.name, count=count))
        for resource in sorted(by_resource)
        for name, count in _device_requests(by_resource[resource])
    ]
    return ResourceClaim(metadata, DeviceClaim(requests=tuple(sorted(wanted, key=lambda request: request.name))))


def _device_requests(requests: Sequence[ExtendedRequest]) -> Iterator[tuple[str, int]]:
    """Names and counts for one resource: the largest additional need of an init container, then each container."""
    lasting = [request for request in requests if not request.short_lived]
    passing = [
        (request.request, request.count - sum(later.count for later in lasting if later.index >= request.index))
        for request in requests
        if request.short_lived
    ]
    most = max(passing, key=lambda request: request[1], default=("", 0))
    if most[1] > 0:
        yield most
    yield from ((request.request, request.count) for request in lasting)


def served(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """The class that serves each resource: the newest one. Equally old classes are ordered by name."""
    by_name = sorted(classes, key=lambda class_: class_.metadata.name, reverse=True)
    oldest_first = sorted(by_name, key=lambda device_class: device_class.metadata.creation_timestamp)
    implicit = {f"{CLASS_RESOURCE_PREFIX}{device_class.metadata.name}": device_class for device_class in oldest_first}
    return implicit | {
        device_class.extended_resource_name: device_class
        for device_class in oldest_first
        if device_class.extended_resource_name
    }


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Matches objects that meet all requirements. Without requirements, it matches every object.

    `nothing` marks an absent selector, which matches no object.
    """

    requirements: tuple[NodeSelectorRequirement, ...] = ()
    nothing: bool = False

    @property
    def everything(self) -> bool:
        """Whether the selector is present and has no requirements."""
        return not self.nothing and not self.requirements

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it matches an object with these labels."""
        return not self.nothing and all(label_matches(requirement, labels) for requirement in self.requirements)


NOTHING: Final = LabelSelector(nothing=True)


def decode_label_selector(fields: Fields | None) -> LabelSelector:
    """A metav1.LabelSelector; NOTHING when it is absent. Raises DecodeError."""
    if fields is None:
        return NOTHING
    equal = [NodeSelectorRequirement(key, "In", (value,)) for key, value in fields.text_map("matchLabels").items()]
    return LabelSelector((*equal, *fields.objects("matchExpressions", _requirement)))


def _requirement(fields: Fields) -> NodeSelectorRequirement:
    operator = fields.required_text("operator")
    if operator not in _OPERATORS:
        raise fields.error("operator", f"{operator!r} is none of {', '.join(_OPERATORS)}")
    return NodeSelectorRequirement(fields.required_text("key"), operator, fields.texts("values"))


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A required term of pod affinity or anti-affinity.

    The term applies to pods that `selector` matches in one of `namespaces` or in a namespace whose labels
    `namespace_selector` matches.
    """

    topology_key: str
    selector: LabelSelector
    namespaces: frozenset[str]
    namespace_selector: LabelSelector = NOTHING

    def matches(self, pod: "Pod", namespace_labels: Mapping[str, str]) -> bool:
        """Whether the term applies to `pod`, whose namespace has these labels."""
        if pod.namespace not in self.namespaces and not self.namespace_selector.matches(namespace_labels):
            return False
        return self.selector.matches(pod.labels)


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """A topologySpreadConstraint with whenUnsatisfiable DoNotSchedule."""

    topology_key: str
    max_skew: int
    selector: LabelSelector
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


@dataclass(frozen=True, slots=True)
class HostPort:
    """A port of the host that a container takes."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume of a type that two pods on one node cannot share. `kind` is the name of its field in the pod.

    Disks of one kind are the same disk if they have an identity in common. Two pods on one node may use the same disk
    only if both mount it `read_only`.
    """

    kind: str
    identities: frozenset[str]
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a pod that is a PersistentVolumeClaim, named `claim`. An `ephemeral` one is made for the pod."""

    claim: str
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """An entry of `spec.resourceClaims`.

    With a template, `claim` is the name that the pod's status records (`recorded`); None when no claim is needed.
    """

    claim: str | None
    from_template: bool = False
    recorded: bool = True
    containers: int = 0
    """How many containers of the pod use the claim."""


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """The properties of a pod that ResourceQuota uses besides its resources."""

    priority_class: str = ""
    terminating: bool = False
    best_effort: bool = True
    crosses_namespaces: bool = False
    counts: bool = True
    """Whether the pod has not ended. A pod that has ended counts only for `count/pods`."""
    ends: float | None = None
    """When a deleted pod should have ended, in seconds since 1970. After that it counts only for `count/pods`."""
    has_own_resources: bool = False
    containers: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = ()
    """Name, requested and limited resources of each container, init containers last."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `requests` and `limits` are those of the pod as a whole, overhead included."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=empty)
    node_name: str = ""
    nominated_node: str = ""
    phase: str = ""
    deleted: bool = False
    """It is being deleted."""
    preempted: bool = False
    """It is being deleted because the scheduler preempted it."""
    started: str = ""
    """`status.startTime`, RFC 3339."""
    priority: int = 0
    preempts: bool = True
    """Whether it may preempt others."""
    requests: Mapping[str, Quantity] = field(default_factory=empty)
    limits: Mapping[str, Quantity] = field(default_factory=empty)
    amounts: Amounts = field(default_factory=empty)
    """`requests` as the scheduler counts them."""
    pod_level: Mapping[str, tuple[Quantity, Quantity]] = field(default_factory=empty)
    """What `spec.resources` requests, and what the containers request together, by the resource."""
    tolerations: tuple[DeviceToleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=empty)
    node_affinity: NodeSelector | None = None
    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    volumes: tuple[Volume, ...] = ()
    disks: tuple[Disk, ...] = ()
    claims: tuple[ClaimReference, ...] = ()
    extended: tuple[ExtendedRequest, ...] = ()
    extended_claim: str = ""
    """The name of the claim that was made for `extended`, as the pod's status records it."""
    gates: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    """Features of the kubelet that it needs."""
    quota: QuotaFacts = QuotaFacts()
    owner: tuple[str, str] = ("", "")
    """Kind and name of its controller."""
    group: str = ""
    """The name of its PodGroup."""
    images: tuple[tuple[str, str], ...] = ()
    """Container and image, of those containers of which the image is known."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether all containers have ended and will not be restarted."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node. `allocatable` is absent where the kubelet has not reported yet; `features` are those it declares."""

    node: Node
    allocatable: Amounts = field(default_factory=empty)
    taints: tuple[DeviceTaint, ...] = ()
    unschedulable: bool = False
    features: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the node."""
        return self.node.metadata.labels


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget. `disrupted` are names of pods whose eviction is counted already."""

    namespace: str
    selector: LabelSelector
    allowed: int
    disrupted: frozenset[str] = frozenset()
