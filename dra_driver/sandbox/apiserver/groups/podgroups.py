# SPDX-License-Identifier: Apache-2.0
"""PodGroups and Workloads: their scheduling policies, and the fields that feature gates allow.

Other fields are stored as they are. The rules are those of `pkg/apis/scheduling/validation` of 1.37.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .. import field_errors
from ..field_errors import FieldError
from ..kinds import Context, KindStrategy
from ..objects import Object

_GATES: Final = {
    "resourceClaims": "DRAWorkloadResourceClaims",
    "schedulingConstraints": "TopologyAwareWorkloadScheduling",
}
"""The feature gate of each field."""
_MOST_TEMPLATES: Final = 8


def _prepare_group(new: Object, old: Object | None, context: Context) -> None:
    """Drop fields while their gate is disabled, unless the stored group has them."""
    _drop(new.get("spec") or {}, (old or {}).get("spec") or {}, context)


def _prepare_workload(new: Object, old: Object | None, context: Context) -> None:
    """Do the same for each template."""
    stored = {template.get("name"): template for template in _templates(old or {})}
    for template in _templates(new):
        _drop(template, stored.get(template.get("name"), {}), context)


def _drop(spec: Object, stored: Mapping[str, Any], context: Context) -> None:
    for field, gate in _GATES.items():
        if not stored.get(field) and not context.release.enabled(gate):
            spec.pop(field, None)


def _templates(workload: Mapping[str, Any]) -> list[Object]:
    return (workload.get("spec") or {}).get("podGroupTemplates") or []


def _validate_group(new: Object, _old: Object | None, _context: Context) -> Iterator[FieldError]:
    yield from _policy_errors((new.get("spec") or {}).get("schedulingPolicy") or {}, "spec.schedulingPolicy")


def _validate_workload(new: Object, _old: Object | None, _context: Context) -> Iterator[FieldError]:
    templates = _templates(new)
    if len(templates) > _MOST_TEMPLATES:
        yield field_errors.too_many("spec.podGroupTemplates", len(templates), _MOST_TEMPLATES)
    names = set()
    for index, template in enumerate(templates):
        path = f"spec.podGroupTemplates[{index}]"
        if template.get("name") in names:
            yield field_errors.duplicate(f"{path}.name", template.get("name"))
        names.add(template.get("name"))
        yield from _policy_errors(template.get("schedulingPolicy") or {}, f"{path}.schedulingPolicy")


def _policy_errors(policy: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kinds = [kind for kind in ("basic", "gang") if policy.get(kind) is not None]
    if len(kinds) != 1:
        yield field_errors.invalid(path, ", ".join(kinds), "must specify exactly one of: `basic`, `gang`")
    least = (policy.get("gang") or {}).get("minCount")
    if isinstance(least, int) and least < 1:
        yield field_errors.invalid(f"{path}.gang.minCount", least, "must be greater than or equal to 1")


POD_GROUP: Final = KindStrategy(
    prepare=_prepare_group, validate=_validate_group, generation=("spec",), status_keeps_metadata=True
)
WORKLOAD: Final = KindStrategy(prepare=_prepare_workload, validate=_validate_workload, generation=("spec",))
