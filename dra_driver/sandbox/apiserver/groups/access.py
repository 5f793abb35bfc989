# SPDX-License-Identifier: Apache-2.0
"""rbac.authorization.k8s.io, coordination.k8s.io, admissionregistration.k8s.io: rules and columns."""

from collections.abc import Iterator
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..kinds import Context, Strategy
from ..objects import Object
from . import columns
from .columns import AGE, NAME

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
_SUBJECTS: Final = ("ServiceAccount", "User", "Group")

Problems = Iterator[FieldError]


def set_binding_defaults(obj: Object, context: Context) -> None:
    """The API groups of a binding's role and subjects."""
    role = obj.get("roleRef")
    if isinstance(role, dict) and not role.get("apiGroup"):
        role["apiGroup"] = RBAC_GROUP
    for subject in obj.get("subjects") or ():
        if not subject.get("apiGroup") and subject.get("kind") in ("User", "Group"):
            subject["apiGroup"] = RBAC_GROUP


def validate_role(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a Role or ClusterRole."""
    namespaced = bool(new["metadata"].get("namespace"))
    for index, rule in enumerate(new.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield errors.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if namespaced:
                text = "namespaced rules cannot apply to non-resource URLs"
                yield errors.invalid(f"{path}.nonResourceURLs", rule["nonResourceURLs"], text)
            continue
        if not rule.get("apiGroups"):
            yield errors.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield errors.required(f"{path}.resources", "resource rules must supply at least one resource")


def validate_binding(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a RoleBinding or ClusterRoleBinding, or with its change."""
    role = new.get("roleRef") or {}
    kinds = ("Role", "ClusterRole") if new["metadata"].get("namespace") else ("ClusterRole",)
    if role.get("kind") not in kinds:
        yield errors.not_supported("roleRef.kind", role.get("kind", ""), kinds)
    if not role.get("name"):
        yield errors.required("roleRef.name")
    for index, subject in enumerate(new.get("subjects") or ()):
        path = f"subjects[{index}]"
        if not subject.get("name"):
            yield errors.required(f"{path}.name")
        if subject.get("kind") not in _SUBJECTS:
            yield errors.not_supported(f"{path}.kind", subject.get("kind", ""), _SUBJECTS)
    if old is not None and role != old.get("roleRef"):
        yield errors.invalid("roleRef", role, "cannot change roleRef")


def validate_lease(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a lease."""
    spec = new.get("spec") or {}
    for field in ("leaseDurationSeconds", "leaseTransitions"):
        value = spec.get(field)
        least = 1 if field == "leaseDurationSeconds" else 0
        if value is not None and value < least:
            text = "must be greater than 0" if least else "must be greater than or equal to 0"
            yield errors.invalid(f"spec.{field}", value, text)


def _role(binding: Object) -> str:
    role = binding.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Any:
    def find(binding: Object) -> str:
        found = (subject for subject in binding.get("subjects") or () if subject.get("kind") == kind)
        return ", ".join(
            f"{subject.get('namespace', '')}/{subject['name']}" if kind == "ServiceAccount" else subject["name"]
            for subject in found
        )

    return find


ROLE: Final = Strategy(validate=validate_role, name_problems=names.path_segment_problems)
BINDING: Final = Strategy(
    default=set_binding_defaults,
    validate=validate_binding,
    name_problems=names.path_segment_problems,
)
LEASE: Final = Strategy(validate=validate_lease, unconditional_update=False)

BINDING_COLUMNS: Final = (
    NAME,
    columns.made("Role", _role),
    AGE,
    columns.made("Users", _subjects("User"), wide=True),
    columns.made("Groups", _subjects("Group"), wide=True),
    columns.made("ServiceAccounts", _subjects("ServiceAccount"), wide=True),
)
LEASE_COLUMNS: Final = (NAME, columns.text("Holder", "spec", "holderIdentity"), AGE)
