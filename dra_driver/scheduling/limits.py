# SPDX-License-Identifier: Apache-2.0
"""LimitRanges: defaults for containers, and the limits that containers and pods must keep.

Follows `plugin/pkg/admission/limitranger` of Kubernetes 1.36, its texts included.
"""

from collections.abc import Iterator
from typing import Any

from ..resource import Quantity
from .policies import CONTAINER, POD, LimitRange, Limits
from .resources import Container, Quantities, pod_limits, pod_requests

_ZERO = Quantity(0)


def fill_in(pod: dict[str, Any], limit_range: LimitRange) -> None:
    """Sets the defaults for limits and requests that the containers of a pod (JSON) lack."""
    default: dict[str, Quantity] = {}
    request: dict[str, Quantity] = {}
    for item in limit_range.items:
        if item.type == CONTAINER:
            default.update(item.default)
            request.update(item.default_request)
    for key in ("containers", "initContainers"):
        for container in pod["spec"].get(key) or ():
            resources = container.setdefault("resources", {})
            for field, values in (("limits", default), ("requests", request)):
                texts = {name: str(quantity) for name, quantity in values.items()}
                if texts:
                    resources[field] = {**texts, **(resources.get(field) or {})}


def violations(
    limit_range: LimitRange, containers: list[Container], own: tuple[Quantities, Quantities]
) -> Iterator[str]:
    """What a pod's containers violate. `own` are the requests and limits of the pod as a whole."""
    for item in limit_range.items:
        if item.type == CONTAINER:
            for container in sorted(containers, key=lambda one: one.init):
                yield from _check(item, container.requests, container.limits)
        elif item.type == POD:
            yield from _check(item, pod_requests(containers, own[0], {}), pod_limits(containers, own[1], {}))


def _check(item: Limits, requested: Quantities, limits: Quantities) -> Iterator[str]:
    for name, least in sorted(item.minimum.items()):
        bound = f"minimum {name} usage per {item.type} is {least}"
        if name not in requested:
            yield f"{bound}.  No request is specified."
        elif requested[name] < least:
            yield f"{bound}, but request is {requested[name]}."
        elif name in limits and limits[name] < least:
            yield f"{bound}, but limit is {limits[name]}."
    for name, most in sorted(item.maximum.items()):
        bound = f"maximum {name} usage per {item.type} is {most}"
        if name not in limits:
            yield f"{bound}.  No limit is specified."
        elif limits[name] > most:
            yield f"{bound}, but limit is {limits[name]}."
        elif name in requested and requested[name] > most:
            yield f"{bound}, but request is {requested[name]}."
    for name, ratio in sorted(item.ratio.items()):
        bound = f"{name} max limit to request ratio per {item.type} is {ratio}"
        request, limit = requested.get(name, _ZERO), limits.get(name, _ZERO)
        if not request.nanos:
            yield f"{bound}, but no request is specified or request is 0."
        elif not limit.nanos:
            yield f"{bound}, but no limit is specified or limit is 0."
        elif limit.nanos * 10**9 > ratio.nanos * request.nanos:
            yield f"{bound}, but provided ratio is {limit.nanos / request.nanos:f}."
