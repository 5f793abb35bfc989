# SPDX-License-Identifier: Apache-2.0
"""Validation of the resources of containers and of pods as a whole (`pkg/apis/core/validation` of Kubernetes 1.36)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...errors import QuantityError
from ...kube.resource import Quantity
from ...kube.resource.codec import Fields
from .names import duplicate, forbidden, invalid, key_problems, label_problems, named, required, unsupported
from .resources import ContainerResources, aggregate, is_extended, is_native, is_of_pods, read_containers, resource_list

JSON = Mapping[str, Any]

_HUGE_PAGES: Final = "hugepages-"
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_COUNTED: Final = (
    *("pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps"),
    *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
)
_STANDARD: Final = frozenset(
    (
        *(f"{kind}{name}" for kind in ("", "requests.", "limits.") for name in _OF_CONTAINERS),
        *(*_COUNTED, "storage", "requests.storage"),
    )
)
_OF_PODS: Final = ("cpu", _HUGE_PAGES, "memory")
_LONGEST_IN_QUOTA: Final = "requests."


def resource_errors(resources: JSON, path: str, claims: Sequence[str] = (), *, of_pod: bool = False) -> Iterator[str]:
    """The errors about the resources of a container, or of the pod as a whole. `claims` are those of the pod."""
    fields = Fields(resources, path, strict=False)
    limits, requests = resource_list(fields, "limits"), resource_list(fields, "requests")
    name_errors = _name_of_pod if of_pod else _name_of_container
    for name, limit in sorted(limits.items()):
        here = f"{path}.limits[{name}]"
        yield from (*name_errors(name, here), *_amount(name, limit, here), *_pages(name, limit, here))
    for name, request in sorted(requests.items()):
        here = f"{path}.requests[{name}]"
        yield from (*name_errors(name, here), *_amount(name, request, here))
        yield from _compared(name, request, limits.get(name), path)
        yield from _pages(name, request, here)
    names = {*limits, *requests}
    if not names & {"cpu", "memory"} and any(name.startswith(_HUGE_PAGES) for name in names):
        yield forbidden(path, "HugePages require cpu or memory")
    yield from _claim_errors(resources.get("claims") or (), claims, f"{path}.claims")


def _compared(name: str, request: Quantity, limit: Quantity | None, path: str) -> Iterator[str]:
    overcommits = is_native(name) and not name.startswith(_HUGE_PAGES)
    if limit is None:
        if not overcommits:
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
    elif request != limit and not overcommits:
        yield invalid(f"{path}.requests", str(request), f"must be equal to {name} limit of {limit}")
    elif request > limit:
        yield invalid(f"{path}.requests", str(request), f"must be less than or equal to {name} limit of {limit}")


def _name(name: str, path: str) -> list[str]:
    errors = list(named(path, name, key_problems(name)))
    if not errors and "/" not in name and name not in _STANDARD and _HUGE_PAGES not in _without_requests(name):
        errors.append(invalid(path, name, "must be a standard resource type or fully qualified"))
    return errors


def _without_requests(name: str) -> str:
    """The start of a name that may be that of huge pages in a quota."""
    return name.removeprefix(_LONGEST_IN_QUOTA)[: len(_HUGE_PAGES)]


def _name_of_container(name: str, path: str) -> list[str]:
    errors = _name(name, path)
    if "/" not in name:
        if name not in _OF_CONTAINERS and not name.startswith(_HUGE_PAGES):
            errors.append(invalid(path, name, "must be a standard resource for containers"))
    elif not is_native(name) and not _is_extended(name):
        errors.append(invalid(path, name, "doesn't follow extended resource name standard"))
    return errors


def _name_of_pod(name: str, path: str) -> list[str]:
    errors = _name(name, path)
    return errors or ([] if is_of_pods(name) else [unsupported(path, name, _OF_PODS)])


def _is_extended(name: str) -> bool:
    if is_native(name) or not is_extended(name):
        return False
    return next(key_problems(f"{_LONGEST_IN_QUOTA}{name}"), None) is None


def _amount(name: str, amount: Quantity, path: str) -> Iterator[str]:
    if amount.nanos < 0:
        yield invalid(path, str(amount), "must be greater than or equal to 0")
    if not amount.is_whole and (name in _COUNTED or _is_extended(name)):
        yield invalid(path, str(amount), "must be an integer")


def _pages(name: str, amount: Quantity, path: str) -> Iterator[str]:
    if not name.startswith(_HUGE_PAGES):
        return
    try:
        size = Quantity.parse(name.removeprefix(_HUGE_PAGES))
    except QuantityError:
        size = Quantity(0)
    if size.nanos <= 0 or not size.is_whole or amount.value % size.value:
        yield invalid(path, str(amount), f"{amount} is not positive integer multiple of {name}")


def _claim_errors(used: Sequence[JSON], claims: Sequence[str], path: str) -> Iterator[str]:
    seen: set[str] = set()
    for index, claim in enumerate(used):
        here, name, request = f"{path}[{index}]", claim.get("name") or "", claim.get("request") or ""
        if not name:
            yield required(here)
            continue
        if name in seen:
            yield duplicate(here, name)
        else:
            key = f"{name}/{request}" if request else name
            if request:
                yield from named(f"{here}.request", request, label_problems(request))
            if key in seen:
                yield duplicate(here, key)
            elif not request:
                yield from (duplicate(here, name) for other in seen if other.startswith(f"{name}/"))
            seen.add(key)
        if name not in claims:
            known = f": {', '.join(sorted(set(claims)))}" if claims else " which is empty"
            yield f'{here}: Not found: "{name}": must be one of the names in pod.spec.resourceClaims{known}'


def consistency_errors(spec: JSON, path: str) -> Iterator[str]:
    """The errors about resources of the pod as a whole that do not suffice for those of its containers."""
    fields = Fields(spec, "spec", strict=False)
    containers = read_containers(fields)
    own = fields.required_object("resources")
    limits, requests = resource_list(own, "limits"), resource_list(own, "requests")

    def exceeded(
        kind: str, given: Mapping[str, Quantity], of: Callable[[ContainerResources], Mapping[str, Quantity]]
    ) -> Any:
        for name, amount in sorted(aggregate(containers, of).items()):
            if name in given and amount > given[name] and (kind == "requests" or name.startswith(_HUGE_PAGES)):
                text = f"must be greater than or equal to aggregate container {kind} of {amount}"
                yield invalid(f"{path}.{kind}[{name}]", str(given[name]), text)

    yield from exceeded("requests", requests, lambda container: container.requests)
    yield from exceeded("limits", limits, lambda container: container.limits)
    regular = [container for container in containers if not container.init]
    for index, container in enumerate(regular):
        for name, limit in sorted(container.limits.items()):
            if name in limits and limit > limits[name]:
                text = f"must be less than or equal to pod limits of {limits[name]}"
                yield invalid(f"{path}.containers[{index}][{name}].limits", str(limit), text)
