# SPDX-License-Identifier: Apache-2.0
"""apiextensions.k8s.io: CustomResourceDefinition, and the kinds that it makes.

Follows pkg/apis/apiextensions/validation of k8s.io/apiextensions-apiserver: a schema must be
structural, names must be consistent. What is not supported here is refused, not ignored:
webhook conversion.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final

from .. import field_errors as errors
from ..field_errors import FieldError
from ..kinds import Column, Context, Kind, ScalePaths, Strategy, subdomain_name
from ..objects import Object, pick, timestamp
from ..schema import values
from ..schema.types import Type
from . import columns, jsonpath, names, rules_cel
from .columns import AGE, NAME

GROUP: Final = "apiextensions.k8s.io"
CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
_KINDS: Final[dict[str, type]] = {
    "type": str,
    "properties": dict,
    "required": list,
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), int),
    "x-kubernetes-list-map-keys": list,
    "x-kubernetes-list-type": str,
    "x-kubernetes-validations": list,
}
_LIST_TYPES: Final = ("atomic", "map", "set")
_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")

Problems = Iterator[FieldError]


def set_defaults(obj: Object, context: Context) -> None:
    """Singular and list names, conversion."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("conversion", {"strategy": "None"})
    kind_names = spec.setdefault("names", {})
    kind = kind_names.get("kind", "")
    if kind:
        kind_names["singular"] = kind_names.get("singular") or kind.lower()
        kind_names["listKind"] = kind_names.get("listKind") or f"{kind}List"


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """A new definition serves nothing yet."""
    if old is None:
        new["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": [version.get("name", "") for version in _versions(new) if version.get("storage")],
        }


def _versions(crd: Object) -> list[Object]:
    found: list[Object] = pick(crd, "spec", "versions") or []
    return found


def validate(new: Object, old: Object | None, context: Context) -> Problems:
    """What is wrong with a definition, or with its change."""
    spec = new.get("spec", {})
    kind_names, group = spec.get("names", {}), spec.get("group", "")
    plural = kind_names.get("plural", "")
    if new["metadata"].get("name") != f"{plural}.{group}":
        text = 'must be spec.names.plural+"."+spec.group'
        yield errors.invalid("metadata.name", new["metadata"].get("name", ""), text)
    if not group:
        yield errors.required("spec.group")
    elif "." not in group:
        yield errors.invalid("spec.group", group, "should be a domain with at least one dot")
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        yield errors.not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced"))
    for field in ("plural", "singular", "kind", "listKind"):
        value = kind_names.get(field, "")
        if not value:
            yield errors.required(f"spec.names.{field}")
        for problem in names.label_problems(value.lower()) if value else ():
            yield errors.invalid(f"spec.names.{field}", value, problem)
    if kind_names.get("kind") and kind_names.get("kind") == kind_names.get("listKind"):
        yield errors.invalid("spec.names.listKind", kind_names["listKind"], "kind and listKind may not be the same")
    if pick(spec, "conversion", "strategy") not in (None, "None"):
        text = "this server converts between versions by changing apiVersion only (strategy None)"
        yield errors.forbidden("spec.conversion.strategy", text)
    yield from _versions_problems(new)
    if old is not None:
        before = old.get("spec", {})
        for path in (("scope",), ("group",), ("names", "kind"), ("names", "plural")):
            if pick(spec, *path) != pick(before, *path):
                yield errors.invalid(f"spec.{'.'.join(path)}", pick(spec, *path), "field is immutable")


def _versions_problems(crd: Object) -> Problems:
    versions = _versions(crd)
    if not versions:
        yield errors.invalid("spec.versions", versions, "must have exactly one version marked as storage version")
        return
    if sum(version.get("storage") is True for version in versions) != 1:
        text = "must have exactly one version marked as storage version"
        yield errors.invalid("spec.versions", [version.get("name", "") for version in versions], text)
    seen: set[str] = set()
    # Versions that agree have one schema for all, which is named so.
    schemas = [pick(version, "schema", "openAPIV3Schema") for version in versions]
    common = schemas[0] if all(schema == schemas[0] for schema in schemas) else None
    if common:
        yield from _root_problems(common, "spec.validation.openAPIV3Schema")
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        name = version.get("name", "")
        for problem in names.label_problems(name):
            yield errors.invalid(f"{path}.name", name, problem)
        if name in seen:
            yield errors.invalid(f"{path}.name", name, "must be unique")
        seen.add(name)
        for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
            for field in ("name", "type", "jsonPath"):
                if not column.get(field):
                    yield errors.required(f"{path}.additionalPrinterColumns[{number}].{field}")
        root = f"{path}.schema.openAPIV3Schema"
        if not schemas[index]:
            yield errors.required(root)
        elif not common:
            yield from _root_problems(schemas[index], root)


def _root_problems(schema: Object, root: str) -> Problems:
    if schema.get("type") == "object":
        yield from _schema_problems(schema, root, "at the root")
    elif schema.get("type"):
        yield errors.invalid(f"{root}.type", schema["type"], "must be object at the root")
    else:
        yield errors.required(f"{root}.type", "must not be empty at the root")


def _schema_problems(schema: Object, path: str, where: str) -> Problems:
    malformed = [keyword for keyword, kind in _KINDS.items() if not isinstance(schema.get(keyword) or kind(), kind)]
    if malformed:  # below items and additionalProperties, which the published schemas leave open
        yield errors.invalid(f"{path}.{malformed[0]}", schema[malformed[0]], "is of the wrong type")
        return
    kind = schema.get("type")
    untyped = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not kind and not untyped:
        yield errors.required(f"{path}.type", f"must not be empty {where}")
    elif kind and kind not in _TYPES:
        yield errors.not_supported(f"{path}.type", kind, _TYPES)
    if schema.get("properties") and isinstance(schema.get("additionalProperties"), dict):
        yield errors.forbidden(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    if kind == "array" and not schema.get("items"):
        yield errors.required(f"{path}.items", "must be specified")
    list_type = schema.get("x-kubernetes-list-type")
    if list_type is not None and list_type not in _LIST_TYPES:
        yield errors.not_supported(f"{path}.x-kubernetes-list-type", list_type, _LIST_TYPES)
    if list_type == "map" and not schema.get("x-kubernetes-list-map-keys"):
        text = "must not be empty if x-kubernetes-list-type is map"
        yield errors.required(f"{path}.x-kubernetes-list-map-keys", text)
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        here = f"{path}.x-kubernetes-validations[{index}].rule"
        text = rule.get("rule", "") if isinstance(rule, dict) else ""
        if not text.strip():
            yield errors.required(here, "rule is not specified")
            continue
        problem = rules_cel.compile_problem(text)
        if problem:
            yield errors.invalid(here, text, f"compilation failed: {problem}")
    for name, inner in (schema.get("properties") or {}).items():
        here = f"{path}.properties[{name}]"
        if isinstance(inner, dict):
            yield from _schema_problems(inner, here, "for specified object fields")
        else:
            yield errors.invalid(here, inner, "must be a schema object")
    items, extra = schema.get("items"), schema.get("additionalProperties")
    if isinstance(items, dict):
        yield from _schema_problems(items, f"{path}.items", "for specified array items")
    elif items is not None:
        yield errors.forbidden(f"{path}.items", "items must be a schema object and not an array")
    if isinstance(extra, dict):
        yield from _schema_problems(extra, f"{path}.additionalProperties", "for specified object fields")


def begin_deletion(obj: Object, now: datetime) -> None:
    """A definition goes only after its objects: says so, and holds on."""
    meta = obj["metadata"]
    meta["deletionTimestamp"] = timestamp(now)
    meta["finalizers"] = [*meta.get("finalizers", ()), CLEANUP]
    going = {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": timestamp(now),
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    }
    obj["status"]["conditions"] = [*(obj["status"].get("conditions") or ()), going]


STRATEGY: Final = Strategy(
    checks_required=False,
    default=set_defaults,
    prepare=prepare,
    validate=validate,
    generation=("spec",),
    status_keeps_metadata=True,
    unconditional_update=False,
    returns_deleted=True,
    begin_deletion=begin_deletion,
)


def custom_kind(crd: Object, version: Object, node: Type) -> Kind:
    """The kind that one version of a definition serves."""
    spec = crd["spec"]
    kind_names, subresources = spec["names"], version.get("subresources") or {}
    scale = subresources.get("scale")
    return Kind(
        spec["group"],
        kind_names["kind"],
        kind_names["plural"],
        tuple(item["name"] for item in by_priority(_versions(crd)) if item.get("served")),
        namespaced=spec["scope"] == "Namespaced",
        singular=kind_names.get("singular", ""),
        short=tuple(kind_names.get("shortNames") or ()),
        categories=tuple(kind_names.get("categories") or ()),
        list_name=kind_names.get("listKind", ""),
        subresources=tuple(name for name in ("status", "scale") if subresources.get(name) is not None),
        scale=_scale_paths(scale) if scale else None,
        verbs=("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"),
        strategy=Strategy(
            validate=partial(_custom_problems, node=node),
            validate_status=partial(_custom_problems, node=node),
            generation=("*",),
            checks_required=False,
            name_problems=subdomain_name,
            unconditional_update=False,
        ),
        selectors={
            field["jsonPath"].lstrip("."): partial(jsonpath.text_at, field["jsonPath"])
            for field in version.get("selectableFields") or ()
        },
        columns=_columns(version.get("additionalPrinterColumns") or ()),
        custom=True,
    )


def _custom_problems(new: Object, old: Object | None, context: Context, *, node: Type) -> Problems:
    found = list(values.object_problems(new, node))
    yield from found
    if not found:
        yield from rules_cel.rule_problems(new, old, node)


def _scale_paths(scale: Object) -> ScalePaths:
    def path(field: str) -> tuple[str, ...]:
        return tuple(part for part in str(scale.get(field, "")).split(".") if part)

    return ScalePaths(path("specReplicasPath"), path("statusReplicasPath"), path("labelSelectorPath"))


def _columns(declared: Any) -> tuple[Column, ...]:
    if not declared:
        return (NAME, AGE)
    return (NAME, *(_column(column) for column in declared))


def _column(column: Object) -> Column:
    def cell(obj: Object, now: datetime) -> Any:
        found = jsonpath.find(column["jsonPath"], obj)
        if column["type"] == "date":
            return columns.since(str(found[0]), now) if found else None
        if column["type"] == "string":
            return ",".join(jsonpath.shown(value) for value in found) if found else None
        return found[0] if found else None

    return Column(
        column["name"],
        cell,
        type=column["type"],
        format=column.get("format", ""),
        priority=column.get("priority", 0),
        description=column.get("description")
        or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
    )


def by_priority(versions: list[Object]) -> list[Object]:
    """Versions, the most stable and newest first: v2, v1, v1beta1, v1alpha1."""
    return sorted(versions, key=lambda version: names.version_order(version["name"]))
