# SPDX-License-Identifier: Apache-2.0
"""What the API server would refuse of a pod, as far as it concerns scheduling, in its own words.

Follows `pkg/apis/core/validation` of Kubernetes 1.36.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..resource import Quantity
from .resources import is_native

_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and"
    " end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '{_LABEL_VALUE.pattern}')"
)
_LABEL_BYTES: Final = 63
_REQUIRED: Final = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
_ONLY_WITHOUT_USERS: Final = (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))


def pod_errors(pod: Mapping[str, Any]) -> Iterator[str]:
    """Why the API server refuses a pod (JSON, with its defaults), one text for each mistake."""
    spec = pod["spec"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or ()):
            yield from _resources(container.get("resources") or {}, f"spec.{key}[{index}].resources")
    if spec.get("hostUsers") is False:
        for field, shown in _ONLY_WITHOUT_USERS:
            if spec.get(field):
                yield f"spec.{shown}: Forbidden: when `hostUsers` is false"
    if required is not None:
        yield from _node_selector(required)


def _resources(resources: Mapping[str, Any], path: str) -> Iterator[str]:
    limits = {name: Quantity.parse(str(value)) for name, value in (resources.get("limits") or {}).items()}
    requests = {name: Quantity.parse(str(value)) for name, value in (resources.get("requests") or {}).items()}
    for name, request in sorted(requests.items()):
        overcommits = is_native(name) and not name.startswith("hugepages-")
        limit = limits.get(name)
        if limit is None:
            if not overcommits:
                yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
        elif request != limit and not overcommits:
            yield f'{path}.requests: Invalid value: "{request}": must be equal to {name} limit of {limit}'
        elif request > limit:
            yield f'{path}.requests: Invalid value: "{request}": must be less than or equal to {name} limit of {limit}'


def _node_selector(selector: Mapping[str, Any]) -> Iterator[str]:
    terms = selector.get("nodeSelectorTerms") or ()
    if not terms:
        yield f"{_REQUIRED}.nodeSelectorTerms: Required value: must have at least one node selector term"
    for index, term in enumerate(terms):
        path = f"{_REQUIRED}.nodeSelectorTerms[{index}]"
        for number, one in enumerate(term.get("matchExpressions") or ()):
            yield from _expression(one, f"{path}.matchExpressions[{number}]")
        for number, one in enumerate(term.get("matchFields") or ()):
            yield from _field(one, f"{path}.matchFields[{number}]")


def _expression(requirement: Mapping[str, Any], path: str) -> Iterator[str]:
    operator, values = requirement.get("operator", ""), requirement.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield f"{path}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield f"{path}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield f"{path}.values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
    else:
        yield f'{path}.operator: Invalid value: "{operator}": not a valid selector operator'
    for index, value in enumerate(values):
        if len(value.encode()) > _LABEL_BYTES:
            yield f'{path}.values[{index}]: Invalid value: "{value}": must be no more than {_LABEL_BYTES} bytes'
        if _LABEL_VALUE.fullmatch(value) is None:
            yield f'{path}.values[{index}]: Invalid value: "{value}": {_LABEL_VALUE_TEXT}'


def _field(requirement: Mapping[str, Any], path: str) -> Iterator[str]:
    operator, key, values = requirement.get("operator", ""), requirement.get("key", ""), requirement.get("values") or []
    if operator not in ("In", "NotIn"):
        yield f'{path}.operator: Invalid value: "{operator}": not a valid selector operator'
    elif len(values) != 1:
        what = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield f"{path}.values: Required value: {what}"
    if key != "metadata.name":
        yield f'{path}.key: Invalid value: "{key}": not a valid field selector key'
