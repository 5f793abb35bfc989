# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions (apiextensions.k8s.io), and the kinds that they define.

The schemas of custom objects give their types and defaults, and most of their rules (`structural`). Definitions also
have the columns of `kubectl get`. Expressions and conversion are not applied.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..kinds import Column, Context, KindStrategy, ServedKind
from ..objects import Object, canonical, pick, timestamp
from ..schema import SchemaType, Shape
from . import jsonpath, structural
from .columns import AGE, NAME, since

GROUP: Final = "apiextensions.k8s.io"
_TEXT: Final = SchemaType(Shape.STRING)
_CELL_TYPES: Final[dict[str, tuple[type, ...]]] = {"integer": (int,), "number": (int, float), "boolean": (bool,)}
"""The JSON types of cells. Values of another type give empty cells."""


def set_defaults(obj: Object, context: Context) -> None:
    """Set singular and list names, and the conversion."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("conversion", {"strategy": "None"})
    kind_names = spec.setdefault("names", {})
    if kind := kind_names.get("kind"):
        kind_names["singular"] = kind_names.get("singular") or kind.lower()
        kind_names["listKind"] = kind_names.get("listKind") or f"{kind}List"


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """Set the status: a new definition is established at once."""
    if old is None:
        now = timestamp(context.now)
        new["status"] = {
            "acceptedNames": new["spec"]["names"],
            "storedVersions": [version.get("name", "") for version in _versions(new) if version.get("storage")],
            "conditions": [
                _condition("NamesAccepted", "NoConflicts", "no conflicts found", now),
                _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", now),
            ],
        }


def _condition(kind: str, reason: str, message: str, now: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}


def _versions(crd: Object) -> list[Object]:
    found: list[Object] = pick(crd, "spec", "versions") or []
    return found


def validate(new: Object, old: Object | None, context: Context) -> Iterator[FieldError]:
    """Yield the problems of the names, the scope or the versions of a definition."""
    spec = new.get("spec", {})
    kind_names, group = spec.get("names", {}), spec.get("group", "")
    if new["metadata"].get("name") != f"{kind_names.get('plural', '')}.{group}":
        text = 'must be spec.names.plural+"."+spec.group'
        yield errors.invalid("metadata.name", new["metadata"].get("name", ""), text)
    if "." not in group:
        yield errors.invalid("spec.group", group, "should be a domain with at least one dot")
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        yield errors.not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced"))
    if sum(version.get("storage") is True for version in _versions(new)) != 1:
        text = "must have exactly one version marked as storage version"
        yield errors.invalid("spec.versions", [version.get("name", "") for version in _versions(new)], text)


def warn(new: Object, context: Context) -> Iterator[str]:
    """Warn of columns whose path is not supported."""
    for number, version in enumerate(_versions(new)):
        for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
            try:
                jsonpath.parse(column.get("jsonPath", ""))
            except jsonpath.JsonPathError as error:
                path = f"spec.versions[{number}].additionalPrinterColumns[{index}].jsonPath"
                yield f"{path}: the cells of this column are empty: {error}"


STRATEGY: Final = KindStrategy(
    checks_required=False,
    default=set_defaults,
    prepare=prepare,
    validate=validate,
    warn=warn,
    generation=("spec",),
    status_keeps_metadata=True,
    unconditional_update=False,
    returns_deleted=True,
)


def _custom_strategy(schema: Object, *, has_status: bool) -> KindStrategy:
    """Return how objects with this schema behave."""

    def prepare(new: Object, old: Object | None, context: Context) -> None:
        if old is None and has_status:
            new.pop("status", None)

    def validate(new: Object, old: Object | None, context: Context) -> Iterator[FieldError]:
        yield from structural.problems(new, old, schema)

    return KindStrategy(
        default=lambda obj, context: structural.set_defaults(obj, schema),
        prepare=prepare,
        validate=validate,
        validate_status=validate,
        generation=("*",),
        checks_required=False,
        unconditional_update=False,
    )


def _schema(version: Object) -> Object:
    found: Object = pick(version, "schema", "openAPIV3Schema") or {}
    return found


def printer_columns(version: Object) -> Iterator[Column]:
    """Yield the columns that a version of a definition declares, or the age if it declares none.

    Follows pkg/registry/customresource/tableconvertor of k8s.io/apiextensions-apiserver.
    """
    declared = version.get("additionalPrinterColumns") or ()
    if not declared:
        yield AGE
    for column in declared:
        kind = column.get("type", "string")
        yield Column(
            column.get("name", ""),
            _cell(column.get("jsonPath", ""), kind),
            type=kind,
            priority=column.get("priority", 0),
            format=column.get("format", ""),
        )


def _cell(path: str, kind: str) -> Callable[[Object, datetime], Any]:
    """Return a function that makes the cell of a column. Cells of a path that is not supported are empty."""
    try:
        steps = jsonpath.parse(path)
    except jsonpath.JsonPathError:
        return lambda obj, now: None

    def cell(obj: Object, now: datetime) -> Any:
        found = jsonpath.find(obj, steps)
        if not found:
            return None
        value = found[0]
        if kind == "date":
            return _age(value, now)
        if kind == "string":
            return value if isinstance(value, str) else canonical(value)
        return value if isinstance(value, _CELL_TYPES.get(kind, ())) else None

    return cell


def _age(value: Any, now: datetime) -> str:
    try:
        return since(value, now)
    except (TypeError, ValueError):
        return "<invalid>"


def custom_kinds(crd: Object) -> Iterator[tuple[ServedKind, str, Object]]:
    """Yield the served kinds of a definition with their versions and schemas. The stored version comes first."""
    spec = crd["spec"]
    kind_names = spec["names"]
    versions = sorted(_versions(crd), key=lambda version: names.version_order(version["name"]))
    served = tuple(version["name"] for version in versions if version.get("served"))
    for version in sorted(versions, key=lambda version: not version.get("storage")):
        if not version.get("served"):
            continue
        subresources: Any = version.get("subresources") or {}
        has_status = subresources.get("status") is not None
        yield (
            ServedKind(
                spec["group"],
                kind_names["kind"],
                kind_names["plural"],
                served,
                namespaced=spec["scope"] == "Namespaced",
                singular=kind_names["singular"],
                short=tuple(kind_names.get("shortNames") or ()),
                categories=tuple(kind_names.get("categories") or ()),
                list_name=kind_names["listKind"],
                subresources=("status",) if has_status else (),
                strategy=_custom_strategy(_schema(version), has_status=has_status),
                columns=(NAME, *printer_columns(version)),
                schema=_schema(version),
            ),
            version["name"],
            _schema(version),
        )


def custom_type(metadata: SchemaType, declared: SchemaType) -> SchemaType:
    """Return the type of a custom object: its `metadata`, and the fields that its schema has."""
    fields = {**declared.fields, "apiVersion": _TEXT, "kind": _TEXT, "metadata": metadata}
    is_open = declared.open or declared.shape is not Shape.STRUCT
    return SchemaType(Shape.STRUCT, fields=fields, open=is_open)
