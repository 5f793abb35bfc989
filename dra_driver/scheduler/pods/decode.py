# SPDX-License-Identifier: Apache-2.0
"""Decodes the fields of pods and nodes that decide scheduling, with the API server's defaults
(`pkg/apis/core/v1/defaults.go`).

Unknown fields of stored objects are ignored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from ...kube.resource import DeviceTaint, ObjectMeta, Quantity
from ...kube.resource.codec import DecodeError, Fields, decode_node
from ...kube.resource.codec.fields import node_selector, timestamp, toleration
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
from .placement import PREFERRED, REQUIRED
from .resources import (
    ContainerResources,
    Quantities,
    StatusResources,
    add,
    aggregate,
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

_Condition = tuple[str, str, str]
"""Type, status and reason of a condition."""


class PodDecoder:
    """Decodes pods. Values that many pods have in common are stored once."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def decode(self, value: Mapping[str, Any]) -> Pod:
        """The pod of a JSON object. Raises DecodeError."""
        meta, spec, status = sections(value)
        if value.get("spec") is None:
            raise DecodeError("spec", "is required")
        name, namespace = meta.text("name"), meta.text("namespace") or "default"
        containers = read_containers(spec)
        volumes = spec.objects("volumes", lambda fields: fields)
        has_own = "resources" in spec
        own = section(spec, "resources")
        own_requests, own_limits = defaulted_own(
            resource_list(own, "requests"), resource_list(own, "limits"), containers
        )
        overhead = resource_list(spec, "overhead")
        conditions = status.objects("conditions", _condition)
        reported = _status_resources(status, conditions)
        wanted = pod_requests(containers, own_requests, overhead, reported)
        together = aggregate(containers, lambda container: container.requests) if has_own else {}
        pod_level = {name: (amount, together.get(name, Quantity(0))) for name, amount in own_requests.items()}
        add(wanted, {name: one for name, one in _of_devices(status).items() if name not in pod_level})
        requests, counted = self._resources(wanted)
        affinity = section(spec, "affinity")
        near, apart = (_PodTerms(section(affinity, kind), namespace) for kind in ("podAffinity", "podAntiAffinity"))
        shares_network = spec.flag("hostNetwork")
        deleted_at = timestamp(meta, "deletionTimestamp")
        phase = status.text("phase")
        facts = QuotaFacts(
            priority_class=spec.text("priorityClassName"),
            terminating=spec.integer("activeDeadlineSeconds") is not None,
            best_effort=_is_best_effort(status, [own_requests, own_limits] if has_own else _amounts_of(containers)),
            crosses_namespaces=near.crosses or apart.crosses,
            counts=phase not in ("Succeeded", "Failed"),
            ends=_ends(meta, deleted_at),
            has_own_resources=any(is_of_pods(resource) for resource in (*own_requests, *own_limits)),
            containers=tuple(
                (container.name, frozenset(container.requests), frozenset(container.limits))
                for container in sorted(containers, key=lambda container: container.init)
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
            preempted=bool(deleted_at) and _is_preempted(conditions),
            started=timestamp(status, "startTime"),
            priority=spec.integer("priority") or 0,
            preempts=spec.text("preemptionPolicy") != PREEMPT_NEVER,
            requests=requests,
            limits=self._resources(pod_limits(containers, own_limits, overhead))[0],
            amounts=counted,
            pod_level=pod_level,
            tolerations=self._keep(spec.objects("tolerations", toleration)),
            node_selector=self._texts(spec.text_map("nodeSelector")),
            node_affinity=self._keep(node_selector(section(affinity, "nodeAffinity").object(REQUIRED))),
            affinity=self._keep(near.required),
            anti_affinity=self._keep(apart.required),
            spread=self._keep(tuple(_spread(spec))),
            host_ports=self._keep(tuple(_host_ports(containers, shared=shares_network))),
            volumes=self._keep(tuple(_volumes(volumes, name))),
            disks=self._keep(tuple(_disks(volumes))),
            claims=tuple(_claims(spec, status, containers)),
            extended_claim=section(status, "extendedResourceClaimStatus").text("resourceClaimName"),
            extended=self._keep(tuple(extended_requests(containers))),
            gates=self._keep(spec.objects("schedulingGates", lambda fields: fields.required_text("name"))),
            features=self._keep(_features(spec, containers, shares_network=shares_network)),
            quota=self._keep(facts),
            owner=self._keep(_controller(meta)),
            group=self._keep(section(spec, "schedulingGroup").text("podGroupName")),
            images=self._keep(tuple((container.name, container.image) for container in containers if container.image)),
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


def _condition(fields: Fields) -> _Condition:
    return fields.text("type"), fields.text("status"), fields.text("reason")


def _status_resources(status: Fields, conditions: Iterable[_Condition]) -> StatusResources | None:
    if not any(key in status for key in ("containerStatuses", "initContainerStatuses", "resources")):
        return None
    infeasible = any(kind == "PodResizePending" and why == "Infeasible" for kind, _, why in conditions)
    return StatusResources(status, infeasible=infeasible)


def _is_best_effort(status: Fields, amounts: Iterable[Quantities]) -> bool:
    """Whether the quality of service class is BestEffort. Follows component-helpers' `qos.ComputePodQOS`.

    `amounts` are those of the pod as a whole, if it has any such field, else those of its containers.
    """
    recorded = status.text("qosClass")
    if recorded:
        return recorded == "BestEffort"
    return not any(amount[name].nanos for amount in amounts for name in ("cpu", "memory") if name in amount)


def _amounts_of(containers: Iterable[ContainerResources]) -> Iterator[Quantities]:
    for container in containers:
        yield from (container.requests, container.limits)


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


class _PodTerms:
    """The required terms of pod affinity or anti-affinity. `crosses`: a term selects other namespaces."""

    def __init__(self, fields: Fields, namespace: str) -> None:
        decoded = fields.objects(REQUIRED, lambda term: _affinity_term(term, namespace))
        self.required = tuple(term for term, _ in decoded)
        self.crosses = any(crosses for _, crosses in decoded) or any(fields.objects(PREFERRED, _prefers_others))


def _affinity_term(fields: Fields, namespace: str) -> tuple[AffinityTerm, bool]:
    """The term, and whether it is about other namespaces."""
    names = fields.texts("namespaces")
    namespaces = fields.object("namespaceSelector")
    term = AffinityTerm(
        fields.required_text("topologyKey"),
        decode_label_selector(fields.object("labelSelector")),
        frozenset(names or (() if namespaces is not None else (namespace,))),
        decode_label_selector(namespaces),
    )
    return term, bool(names) or namespaces is not None


def _prefers_others(weighted: Fields) -> bool:
    term = section(weighted, "podAffinityTerm")
    return bool(term.texts("namespaces")) or term.object("namespaceSelector") is not None


def _spread(spec: Fields) -> Iterator[SpreadConstraint]:
    for fields in spec.objects("topologySpreadConstraints", lambda fields: fields):
        if fields.text("whenUnsatisfiable") == "DoNotSchedule":
            yield SpreadConstraint(
                fields.required_text("topologyKey"),
                fields.required_integer("maxSkew"),
                decode_label_selector(fields.object("labelSelector")),
                fields.integer("minDomains") or 1,
                fields.text("nodeAffinityPolicy") != "Ignore",
                fields.text("nodeTaintsPolicy") == "Honor",
            )


def _host_ports(containers: list[ContainerResources], *, shared: bool) -> Iterator[HostPort]:
    """The ports of containers and sidecars. With the network of the host (`shared`), every port is one of the host."""
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


def _of_devices(status: Fields) -> dict[str, Quantity]:
    """The resources that the devices of a pod take of its node, as recorded by the scheduler."""
    total: dict[str, Quantity] = {}
    for claim in status.objects("nodeAllocatableResourceClaimStatuses", lambda fields: fields):
        containers = len(claim.texts("containers"))
        for entry in claim.objects("mapping", lambda fields: fields):
            add(total, {entry.text("name"): entry.quantity("quantity") or Quantity(0)})
        for entry in claim.objects("overhead", lambda fields: fields):
            name, each = entry.text("name"), entry.quantity("perContainer") or Quantity(0)
            add(total, {name: entry.quantity("perPod") or Quantity(0)})
            add(total, {name: Quantity(each.nanos * containers, each.format)})
    return total


def _claims(spec: Fields, status: Fields, containers: Iterable[ContainerResources]) -> Iterator[ClaimReference]:
    used = Counter(name for container in containers for name in container.claims)
    recorded = {
        resource_claim_status.text("name"): resource_claim_status.optional_text("resourceClaimName")
        for resource_claim_status in status.objects("resourceClaimStatuses", lambda fields: fields)
    }
    for fields in spec.objects("resourceClaims", lambda fields: fields):
        direct = fields.optional_text("resourceClaimName")
        if direct is not None:
            yield ClaimReference(direct, containers=used[fields.text("name")])
        else:
            name = fields.required_text("name")
            is_recorded = name in recorded
            yield ClaimReference(recorded.get(name), from_template=True, recorded=is_recorded, containers=used[name])


def extended_requests(containers: list[ContainerResources]) -> Iterator[ExtendedRequest]:
    """The requests of a pod's containers for extended resources."""
    for index, container in enumerate(containers):
        for number, name in enumerate(sorted(container.requests)):
            quantity = container.requests[name]
            if is_extended(name) and quantity.is_whole and quantity.value:
                short_lived = container.init and not container.sidecar
                yield ExtendedRequest(
                    index, f"container-{index}-request-{number}", name, quantity.value, short_lived=short_lived
                )


def _controller(meta: Fields) -> tuple[str, str]:
    """Kind and name of the controller among the owners."""
    owners = meta.objects(
        "ownerReferences", lambda fields: (fields.flag("controller"), fields.text("kind"), fields.text("name"))
    )
    return next(((kind, name) for controls, kind, name in owners if controls), ("", ""))


def _features(spec: Fields, containers: Iterable[ContainerResources], *, shares_network: bool) -> frozenset[str]:
    """Features of the kubelet that the pod needs, as component-helpers' nodedeclaredfeatures of 1.36 infers them."""
    features = set()
    if shares_network and "hostUsers" in spec and not spec.flag("hostUsers"):
        features.add("UserNamespacesHostNetworkSupport")
    if any("RestartAllContainers" in container.restart_actions for container in containers):
        features.add("RestartAllContainersOnContainerExits")
    return frozenset(features)


def _is_preempted(conditions: Iterable[_Condition]) -> bool:
    """Whether the scheduler removes the pod to make room, as the first condition DisruptionTarget says."""
    found = next((condition for condition in conditions if condition[0] == "DisruptionTarget"), None)
    return found is not None and found[1:] == ("True", "PreemptionByScheduler")
