# SPDX-License-Identifier: Apache-2.0
"""The types of custom resources: from a CRD's schema to a `Type`, and reading objects by it.

A custom resource is pruned and defaulted by its structural schema; what its values may be is
checked afterwards (`values`), because those mistakes are 422 and not 400.
"""

from typing import Any, Final

from ..objects import Object, clone
from .decode import Decoded, DecodeError
from .decode import decode as decode_published
from .types import DEDUCED, ListKind, Rules, Shape, Type

_KEYWORDS: Final = (
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "required",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
)
_SCALARS: Final = {
    "string": Shape.STRING,
    "integer": Shape.INTEGER,
    "number": Shape.NUMBER,
    "boolean": Shape.BOOLEAN,
}
_ENVELOPE: Final = ("apiVersion", "kind", "metadata")


def compile_schema(schema: Object, metadata: Type, name: str) -> Type:
    """The type of a custom resource from its openAPIV3Schema; `metadata` is ObjectMeta's type."""
    root = _node(schema, metadata)
    text = Type(Shape.STRING, go_name="string")
    root.shape, root.go_name = Shape.STRUCT, name
    root.fields = {**root.fields, "apiVersion": text, "kind": text, "metadata": metadata}
    return root


def _node(schema: Object, metadata: Type) -> Type:
    keep = schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type")
    node = Type(_SCALARS.get(kind or "", Shape.ANY), go_name=kind or "", open=keep)
    if schema.get("x-kubernetes-int-or-string"):
        node.shape = Shape.INT_OR_STRING
    elif kind == "array":
        node.shape, node.element = Shape.LIST, _node(schema.get("items") or {}, metadata)
        node.list_kind = ListKind(schema.get("x-kubernetes-list-type") or "atomic")
        node.list_keys = tuple(str(key) for key in schema.get("x-kubernetes-list-map-keys") or ())
        _take_key_defaults(node)
    elif kind == "object":
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            node.shape, node.element = Shape.MAP, _node(extra, metadata)
        elif extra is True:
            node.shape, node.element, node.open = Shape.MAP, DEDUCED, True
        else:
            node.shape = Shape.STRUCT
            node.fields = {name: _node(field, metadata) for name, field in (schema.get("properties") or {}).items()}
    node.atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if schema.get("x-kubernetes-embedded-resource"):
        node.fields = {**node.fields, "metadata": metadata}
        for field in ("apiVersion", "kind"):
            node.fields.setdefault(field, Type(Shape.STRING, go_name="string"))
    node.required = tuple(str(name) for name in schema.get("required") or ())
    node.rules = Rules(
        nullable=schema.get("nullable") is True,
        default=schema.get("default"),
        has_default="default" in schema,
        constraints={keyword: schema[keyword] for keyword in _KEYWORDS if keyword in schema},
        validations=tuple(schema.get("x-kubernetes-validations") or ()),
    )
    return node


def _take_key_defaults(node: Type) -> None:
    """Defaults of a list's key fields belong to the identity of its items."""
    item = node.item
    for key in node.list_keys:
        rules = item.fields[key].rules if key in item.fields else None
        if rules is not None and rules.has_default:
            item.key_defaults = {**item.key_defaults, key: rules.default}


def decode(value: Object, node: Type, *, duplicates: list[str] | None = None) -> Decoded:
    """A custom resource without the fields that its schema does not know. Raises DecodeError about metadata."""
    complaints = list(duplicates or ())
    result: Object = {}
    for name, item in value.items():
        if name == "metadata":
            meta = _metadata(item, node.fields["metadata"])
            result[name] = meta.value
            complaints += [text.replace('field "', 'field "metadata.', 1) for text in meta.complaints]
        elif name in _ENVELOPE:
            result[name] = item
        else:
            _keep(result, name, item, node, "", complaints)
    return Decoded(result, complaints)


def _metadata(value: Any, node: Type) -> Decoded:
    if not isinstance(value, dict):
        raise DecodeError("array" if isinstance(value, list) else "string", node.go_name)
    return decode_published(value, node)


def _keep(result: Object, name: str, item: Any, node: Type, path: str, complaints: list[str]) -> None:
    here = f"{path}.{name}" if path else name
    field = node.fields.get(name)
    if field is not None:
        result[name] = _pruned(item, field, here, complaints)
    elif node.open:
        result[name] = item
    else:
        complaints.append(f'unknown field "{here}"')


def _pruned(value: Any, node: Type, path: str, complaints: list[str]) -> Any:
    if isinstance(value, dict) and node.shape is Shape.STRUCT:
        result: Object = {}
        for name, item in value.items():
            _keep(result, name, item, node, path, complaints)
        return result
    if isinstance(value, dict) and node.shape is Shape.MAP:
        return {name: _pruned(item, node.item, f"{path}.{name}", complaints) for name, item in value.items()}
    if isinstance(value, list) and node.shape is Shape.LIST:
        return [_pruned(item, node.item, f"{path}[{index}]", complaints) for index, item in enumerate(value)]
    return value


def fill_defaults(value: Any, node: Type) -> None:
    """Puts the schema's defaults into `value`; a null that is not allowed counts as absent when there is one."""
    if isinstance(value, dict):
        for name, field in node.fields.items():
            rules = field.rules
            if rules is None or not rules.has_default:
                continue
            if name not in value or (value[name] is None and not rules.nullable):
                value[name] = clone(rules.default)
        for name, item in value.items():
            if name in node.fields or node.element is not None:
                fill_defaults(item, node.child(name))
    elif isinstance(value, list):
        for item in value:
            fill_defaults(item, node.item)
