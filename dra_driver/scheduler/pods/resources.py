# SPDX-License-Identifier: Apache-2.0
"""How many resources a pod requests as a whole, and how the scheduler counts them.

Follows k8s.io/component-helpers/resource (init containers, sidecars, overhead, resources of the pod as a whole,
resizes in place), `pkg/scheduler/framework.Resource` and `pkg/apis/core/v1/helper` of Kubernetes 1.36.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final

from ...kube.resource import Quantity
from ...kube.resource.claim import CLASS_RESOURCE_PREFIX
from ...kube.resource.codec import Fields, json_type
from .objects import Amounts

_HUGE_PAGES: Final = "hugepages-"
_ZERO: Final = Quantity(0)

Quantities = Mapping[str, Quantity]


def is_native(name: str) -> bool:
    """Whether Kubernetes itself defines the resource."""
    return "/" not in name or "kubernetes.io/" in name


@lru_cache(maxsize=4096)
def is_extended(name: str) -> bool:
    """Whether device plugins or DeviceClasses serve the resource."""
    return (not is_native(name) and not name.startswith("requests.")) or name.startswith(CLASS_RESOURCE_PREFIX)


def is_of_pods(name: str) -> bool:
    """Whether `spec.resources` of a pod may have the resource."""
    return name in ("cpu", "memory") or name.startswith(_HUGE_PAGES)


def amounts(quantities: Quantities) -> Amounts:
    """The quantities as the scheduler counts them: names without a slash that it does not know are left out."""
    return {
        name: -(-quantity.nanos // 10**6) if name == "cpu" else quantity.value
        for name, quantity in quantities.items()
        if name in ("cpu", "memory", "ephemeral-storage", "pods") or "/" in name or name.startswith(_HUGE_PAGES)
    }


def section(fields: Fields, name: str) -> Fields:
    """A nested object; if it is absent, one without fields. Raises DecodeError."""
    return fields.object(name) or Fields({}, name, fields)


def sections(value: Mapping[str, Any]) -> tuple[Fields, Fields, Fields]:
    """The metadata, spec and status of an object (JSON). Raises DecodeError."""
    top = Fields(value, strict=False)
    return section(top, "metadata"), section(top, "spec"), section(top, "status")


def resource_list(fields: Fields, name: str) -> dict[str, Quantity]:
    """The map of quantities `name` of an object, each rounded up to thousandths as the API does. Raises DecodeError."""
    raw = fields.raw_object(name) or {}
    for key in raw:
        if type(key) is not str:
            raise fields.error(f"{name}[{key}]", f"must be named by a string, not {json_type(key)}")
    return {key: _in_thousandths(fields.as_quantity(f"{name}[{key}]", value)) for key, value in raw.items()}


def _in_thousandths(quantity: Quantity) -> Quantity:
    if quantity.nanos % 10**6 == 0:
        return quantity
    return Quantity(-(-quantity.nanos // 10**6) * 10**6, quantity.format)


def add(total: dict[str, Quantity], more: Quantities) -> None:
    """Adds each quantity to that of `total`."""
    for name, quantity in more.items():
        total[name] = total[name] + quantity if name in total else quantity


def _raise(total: dict[str, Quantity], other: Quantities) -> None:
    for name, quantity in other.items():
        if name not in total or quantity > total[name]:
            total[name] = quantity


def largest(*lists: Quantities) -> dict[str, Quantity]:
    """The largest quantity of each resource."""
    result: dict[str, Quantity] = {}
    for list_ in lists:
        _raise(result, list_)
    return result


class ContainerResources:
    """What a container requests, and its image. `sidecar`: an init container that keeps running."""

    __slots__ = ("claims", "image", "init", "limits", "name", "ports", "requests", "restart_actions", "sidecar")

    def __init__(self, fields: Fields, *, init: bool) -> None:
        resources = section(fields, "resources")
        self.name = fields.text("name")
        self.claims = frozenset(resources.objects("claims", lambda fields: fields.text("name")))
        self.image = fields.text("image")
        self.limits: Quantities = resource_list(resources, "limits")
        # limits are the requests if there are no requests
        self.requests: Quantities = {**self.limits, **resource_list(resources, "requests")}
        self.init = init
        self.sidecar = init and fields.text("restartPolicy") == "Always"
        self.ports = fields.objects("ports", lambda fields: fields)
        self.restart_actions = fields.objects("restartPolicyRules", lambda rule: rule.text("action"))


def read_containers(spec: Fields) -> list[ContainerResources]:
    """The containers of a pod's `spec`, init containers first. Raises DecodeError."""
    return [
        ContainerResources(container, init=init)
        for key, init in (("initContainers", True), ("containers", False))
        for container in spec.objects(key, lambda container: container)
    ]


def aggregate(
    containers: Collection[ContainerResources], of: Callable[[ContainerResources], Quantities]
) -> dict[str, Quantity]:
    """The largest sum that the containers need at one time, init containers in order. `of` gives the needs of one.

    The sum has the format of the first container, before those of sidecars.
    """
    running: dict[str, Quantity] = {}
    sidecars: dict[str, Quantity] = {}
    starting: dict[str, Quantity] = {}
    for container in containers:
        if not container.init:
            add(running, of(container))
    for container in containers:
        if not container.init:
            continue
        wanted = of(container)
        if container.sidecar:
            add(running, wanted)
            add(sidecars, wanted)
            _raise(starting, sidecars)
        else:
            peak = dict(wanted)
            add(peak, sidecars)
            _raise(starting, peak)
    _raise(running, starting)
    return running


def pod_requests(
    containers: Collection[ContainerResources],
    own: Quantities,
    overhead: Quantities,
    status: "StatusResources | None" = None,
) -> dict[str, Quantity]:
    """The requests of a pod. `own` is `spec.resources.requests`."""
    requests = aggregate(containers, lambda each: each.requests if status is None else status.requests(each))
    whole = own if status is None else status.own(own)
    requests.update((name, quantity) for name, quantity in whole.items() if is_of_pods(name))
    add(requests, overhead)
    return requests


def pod_limits(
    containers: Collection[ContainerResources], own: Quantities, overhead: Quantities
) -> dict[str, Quantity]:
    """The limits of a pod. `own` is `spec.resources.limits`."""
    limits = aggregate(containers, lambda container: container.limits)
    limits.update((name, quantity) for name, quantity in own.items() if is_of_pods(name))
    add(limits, {name: quantity for name, quantity in overhead.items() if limits.get(name, _ZERO).nanos})
    return limits


def defaulted_own(
    requests: Quantities, limits: Quantities, containers: Collection[ContainerResources]
) -> tuple[Quantities, Quantities]:
    """The requests and limits of a pod as a whole with what the API server adds.

    Huge pages are limited as containers are. Limits count as requests where no container requests.
    """
    if limits or requests:
        pages = aggregate(containers, lambda container: container.limits).items()
        missing = {name: one for name, one in pages if name.startswith(_HUGE_PAGES) and name not in requests}
        limits = {**missing, **limits}
    if not limits:
        return requests, limits
    summed = aggregate(containers, lambda container: container.requests)
    taken = {name: one for name, one in summed.items() if name in ("cpu", "memory")}
    return {**{name: one for name, one in limits.items() if is_of_pods(name)}, **taken, **requests}, limits


class StatusResources:
    """The resources of a running pod that the kubelet reports. A resize may be pending."""

    def __init__(self, status: Fields, *, infeasible: bool) -> None:
        """`infeasible`: the kubelet reports that the resize cannot happen. Raises DecodeError."""
        own = status.object("resources")
        allocated = resource_list(status, "allocatedResources")
        self._own = None if own is None else largest(resource_list(own, "requests"), allocated)
        self._infeasible = infeasible
        self._reported: dict[tuple[bool, str], dict[str, Quantity]] = {}
        for init, key in ((False, "containerStatuses"), (True, "initContainerStatuses")):
            for fields in status.objects(key, lambda fields: fields):
                resources = fields.raw_object("resources")
                if resources:
                    actual = resource_list(Fields(resources, "resources", fields), "requests")
                    allocated = resource_list(fields, "allocatedResources")
                    self._reported[init, fields.text("name")] = largest(actual, allocated)

    def requests(self, container: ContainerResources) -> Quantities:
        """The larger of the requested and the actual resources; the actual ones if the kubelet reports the resize as
        infeasible.
        """
        reported = self._reported.get((container.init, container.name))
        if reported is None or (container.init and not container.sidecar):
            return container.requests
        return self._larger(container.requests, reported)

    def own(self, wanted: Quantities) -> Quantities:
        """The same for `spec.resources.requests`."""
        if self._own is None:
            return wanted
        effective = self._larger(wanted, self._own)
        return {name: effective.get(name, _ZERO) for name in wanted}

    def _larger(self, wanted: Quantities, reported: Quantities) -> Quantities:
        return reported if self._infeasible else largest(wanted, reported)
