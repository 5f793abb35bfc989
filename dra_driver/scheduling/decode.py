# SPDX-License-Identifier: Apache-2.0
"""JSON of pods and nodes into what decides scheduling, with the API server's defaults (`pkg/apis/core/v1/defaults.go`).

Stored objects are read leniently: fields that are not known here are passed over.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from ..resource import DeviceTaint, ObjectMeta
from ..resource.codec import DecodeError, Fields, decode_node
from ..resource.codec.fields import node_selector, timestamp, toleration
from .objects import (
    AffinityTerm,
    Amounts,
    ClaimReference,
    ClusterNode,
    Disk,
    DisruptionBudget,
    ExtendedRequest,
    HostPort,
    Pod,
    QuotaFacts,
    SpreadConstraint,
    Volume,
    decode_label_selector,
)
from .resources import (
    Container,
    Quantities,
    StatusResources,
    amounts,
    defaulted_own,
    is_extended,
    is_of_pods,
    pod_limits,
    pod_requests,
    read_containers,
    resource_list,
    section,
    sections,
)

T = TypeVar("T")

PREEMPT_NEVER: Final = "Never"
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - the address of ports that are taken on every address


class PodDecoder:
    """Reads pods. What many pods have in common is kept once."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def decode(self, value: Mapping[str, Any]) -> Pod:
        """The pod of a JSON object. Raises DecodeError."""
        if value.get("spec") is None:
            raise DecodeError("spec", "is required")
        meta, spec, status = sections(value)
        name, namespace = meta.text("name"), meta.text("namespace") or "default"
        containers = read_containers(spec)
        volumes = spec.objects("volumes", lambda one: one)
        own = section(spec, "resources")
        own_limits = resource_list(own, "limits")
        own_requests = defaulted_own(resource_list(own, "requests"), own_limits, containers)
        overhead = resource_list(spec, "overhead")
        reported = _status_resources(value)
        requests, counted = self._resources(pod_requests(containers, own_requests, overhead, reported))
        affinity = section(spec, "affinity")
        deleted_at = timestamp(meta, "deletionTimestamp")
        phase = status.text("phase")
        facts = QuotaFacts(
            priority_class=spec.text("priorityClassName"),
            terminating=spec.integer("activeDeadlineSeconds") is not None,
            best_effort=_is_best_effort(status, containers, own_requests, own_limits),
            crosses_namespaces=_crosses_namespaces(value),
            counts=phase not in ("Succeeded", "Failed"),
            ends=_ends(meta, deleted_at),
            has_own_resources=any(is_of_pods(one) for one in (*own_requests, *own_limits)),
            containers=tuple(
                (one.name, frozenset(one.requests), frozenset(one.limits))
                for one in sorted(containers, key=lambda one: one.init)
            ),
        )
        return Pod(
            namespace=self._keep(namespace),
            name=name,
            uid=meta.text("uid") or f"pod-{namespace}-{name}",
            labels=self._texts(meta.text_map("labels")),
            node_name=self._keep(spec.text("nodeName")),
            nominated_node=status.text("nominatedNodeName"),
            phase=self._keep(phase),
            deleted=bool(deleted_at),
            preempted=bool(deleted_at) and _is_preempted(status),
            started=timestamp(status, "startTime"),
            priority=spec.integer("priority") or 0,
            preempts=spec.text("preemptionPolicy") != PREEMPT_NEVER,
            requests=requests,
            limits=self._resources(pod_limits(containers, own_limits, overhead))[0],
            amounts=counted,
            tolerations=self._keep(spec.objects("tolerations", toleration)),
            node_selector=self._texts(spec.text_map("nodeSelector")),
            node_affinity=self._keep(node_selector(section(affinity, "nodeAffinity").object(_REQUIRED))),
            affinity=self._keep(_affinity_terms(section(affinity, "podAffinity"), namespace)),
            anti_affinity=self._keep(_affinity_terms(section(affinity, "podAntiAffinity"), namespace)),
            spread=self._keep(tuple(_spread(spec))),
            host_ports=self._keep(tuple(_host_ports(spec, containers))),
            volumes=self._keep(tuple(_volumes(volumes, name))),
            disks=self._keep(tuple(_disks(volumes))),
            claims=tuple(_claims(spec, status)),
            extended_claim=section(status, "extendedResourceClaimStatus").text("resourceClaimName"),
            extended=self._keep(tuple(extended_requests(containers))),
            gates=self._keep(spec.objects("schedulingGates", lambda one: one.required_text("name"))),
            features=self._keep(_features(value)),
            quota=self._keep(facts),
        )

    def _keep(self, value: T) -> T:
        kept: T = self._kept.setdefault(value, value)
        return kept

    def _texts(self, texts: Mapping[str, str]) -> Mapping[str, str]:
        kept: Mapping[str, str] = self._kept.setdefault(("texts", *texts.items()), texts)
        return kept

    def _resources(self, quantities: Quantities) -> tuple[Quantities, Amounts]:
        key = ("resources", *((name, one.nanos, one.format) for name, one in quantities.items()))
        kept: tuple[Quantities, Amounts] | None = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = (quantities, amounts(quantities))
        return kept


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def decode_cluster_node(value: Mapping[str, Any]) -> ClusterNode:
    """The node of a JSON object. Raises DecodeError."""
    _, spec, status = sections(value)
    allocatable = resource_list(status, "allocatable") or resource_list(status, "capacity")
    node = decode_node(value, strict=False)
    return ClusterNode(
        replace(node, metadata=ObjectMeta(name=node.name, labels=node.metadata.labels)),
        amounts(allocatable),
        spec.objects("taints", _taint),
        spec.flag("unschedulable"),
        frozenset(status.texts("declaredFeatures")),
    )


def decode_disruption_budget(value: Mapping[str, Any]) -> DisruptionBudget:
    """The PodDisruptionBudget of a JSON object. Raises DecodeError."""
    meta, spec, status = sections(value)
    return DisruptionBudget(
        meta.text("namespace") or "default",
        decode_label_selector(spec.object("selector")),
        status.integer("disruptionsAllowed") or 0,
        frozenset(status.raw_object("disruptedPods") or ()),
    )


def _status_resources(value: Mapping[str, Any]) -> StatusResources | None:
    status = value.get("status") or {}
    reported = any(status.get(key) for key in ("containerStatuses", "initContainerStatuses", "resources"))
    return StatusResources(status) if reported else None


def _is_best_effort(
    status: Fields, containers: list[Container], own_requests: Quantities, own_limits: Quantities
) -> bool:
    """Whether the quality of service class is BestEffort. Follows component-helpers' `qos.ComputePodQOS`."""
    recorded = status.text("qosClass")
    if recorded:
        return recorded == "BestEffort"
    lists = [own_requests, own_limits]
    if not any(is_of_pods(name) for one in lists for name in one):
        lists = [one for container in containers for one in (container.requests, container.limits)]
    return not any(one[name].nanos for one in lists for name in ("cpu", "memory") if name in one)


def _ends(meta: Fields, deleted_at: str) -> float | None:
    """When a deleted pod should have ended: its grace period after the time of its deletion. Raises DecodeError."""
    grace = meta.integer("deletionGracePeriodSeconds")
    if not deleted_at or grace is None:
        return None
    try:
        moment = datetime.fromisoformat(deleted_at)
    except ValueError:
        raise meta.error("deletionTimestamp", f"{deleted_at!r} is not a time such as 2026-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() + grace


def _taint(fields: Fields) -> DeviceTaint:
    return DeviceTaint(fields.required_text("key"), fields.required_text("effect"), fields.text("value"))


def _affinity_terms(fields: Fields, namespace: str) -> tuple[AffinityTerm, ...]:
    return fields.objects(_REQUIRED, lambda one: _affinity_term(one, namespace))


def _affinity_term(fields: Fields, namespace: str) -> AffinityTerm:
    names = fields.texts("namespaces")
    namespaces = fields.object("namespaceSelector")
    return AffinityTerm(
        fields.required_text("topologyKey"),
        decode_label_selector(fields.object("labelSelector")),
        frozenset(names or (() if namespaces is not None else (namespace,))),
        decode_label_selector(namespaces),
    )


def _crosses_namespaces(pod: Mapping[str, Any]) -> bool:
    affinity = pod["spec"].get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        weighted = [one.get("podAffinityTerm") or {} for one in terms.get(_PREFERRED) or ()]
        for term in [*(terms.get(_REQUIRED) or ()), *weighted]:
            if term.get("namespaces") or term.get("namespaceSelector") is not None:
                return True
    return False


def _spread(spec: Fields) -> Iterator[SpreadConstraint]:
    for fields in spec.objects("topologySpreadConstraints", lambda one: one):
        if fields.text("whenUnsatisfiable") == "DoNotSchedule":
            yield SpreadConstraint(
                fields.required_text("topologyKey"),
                fields.required_integer("maxSkew"),
                decode_label_selector(fields.object("labelSelector")),
                fields.integer("minDomains") or 1,
                fields.text("nodeAffinityPolicy") != "Ignore",
                fields.text("nodeTaintsPolicy") == "Honor",
            )


def _host_ports(spec: Fields, containers: list[Container]) -> Iterator[HostPort]:
    """The ports of containers and sidecars. With the network of the host, every port is one of the host."""
    shared = spec.flag("hostNetwork")
    for container in containers:
        if container.init and not container.sidecar:
            continue
        for port in container.ports:
            own = port.integer("containerPort")
            number = port.integer("hostPort") or (own if shared else 0) or 0
            if number > 0:
                yield HostPort(port.text("hostIP") or ANY_ADDRESS, port.text("protocol") or "TCP", number)


def _volumes(volumes: tuple[Fields, ...], pod: str) -> Iterator[Volume]:
    for fields in volumes:
        claim = fields.object("persistentVolumeClaim")
        if claim is not None:
            yield Volume(claim.required_text("claimName"))
        elif "ephemeral" in fields:
            yield Volume(f"{pod}-{fields.required_text('name')}", ephemeral=True)


def _disks(volumes: tuple[Fields, ...]) -> Iterator[Disk]:
    for fields in volumes:
        for kind, identities in _DISKS.items():
            disk = fields.object(kind)
            if disk is not None:
                read_only = kind != "awsElasticBlockStore" and disk.flag("readOnly")
                yield Disk(kind, frozenset(identities(disk)), read_only)


def _rbd(disk: Fields) -> list[str]:
    image = f"{disk.text('pool') or 'rbd'}/{disk.text('image')}"
    return [f"{monitor}/{image}" for monitor in disk.texts("monitors")]


_DISKS: Final[Mapping[str, Callable[[Fields], list[str]]]] = {
    "gcePersistentDisk": lambda disk: [disk.text("pdName")],
    "awsElasticBlockStore": lambda disk: [disk.text("volumeID")],
    "iscsi": lambda disk: [disk.text("iqn")],
    "rbd": _rbd,
}


def _claims(spec: Fields, status: Fields) -> Iterator[ClaimReference]:
    recorded = {
        one.text("name"): one.optional_text("resourceClaimName")
        for one in status.objects("resourceClaimStatuses", lambda one: one)
    }
    for fields in spec.objects("resourceClaims", lambda one: one):
        direct = fields.optional_text("resourceClaimName")
        if direct is not None:
            yield ClaimReference(direct)
        else:
            name = fields.required_text("name")
            yield ClaimReference(recorded.get(name), from_template=True, recorded=name in recorded)


def extended_requests(containers: list[Container]) -> Iterator[ExtendedRequest]:
    """What the containers of a pod request of extended resources."""
    for index, container in enumerate(containers):
        for number, name in enumerate(sorted(container.requests)):
            quantity = container.requests[name]
            if is_extended(name) and quantity.is_whole and quantity.value:
                short_lived = container.init and not container.sidecar
                yield ExtendedRequest(
                    index, f"container-{index}-request-{number}", name, quantity.value, short_lived=short_lived
                )


def _features(pod: Mapping[str, Any]) -> frozenset[str]:
    """Features of the kubelet that the pod needs, as component-helpers' nodedeclaredfeatures of 1.36 infers them."""
    spec = pod["spec"]
    features = set()
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        features.add("UserNamespacesHostNetworkSupport")
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        if any(rule.get("action") == "RestartAllContainers" for rule in container.get("restartPolicyRules") or ()):
            features.add("RestartAllContainersOnContainerExits")
    return frozenset(features)


def _is_preempted(status: Fields) -> bool:
    """Whether the scheduler removes the pod to make room, as the first condition DisruptionTarget says."""
    for condition in status.objects("conditions", lambda fields: fields):
        if condition.text("type") == "DisruptionTarget":
            return (condition.text("status"), condition.text("reason")) == ("True", "PreemptionByScheduler")
    return False
