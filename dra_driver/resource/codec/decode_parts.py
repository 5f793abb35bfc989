# SPDX-License-Identifier: Apache-2.0
"""Parts of objects that several kinds have: metadata, node selectors, selectors, configurations, tolerations."""

from ..claim import OpaqueConfiguration
from ..device import DeviceToleration
from ..meta import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta, OwnerReference
from .fields import Fields, json_type


def object_meta(top: Fields) -> ObjectMeta:
    """`metadata` of an object; what only the server minds is passed over."""
    top.ignore("apiVersion", "kind")
    fields = top.object("metadata")
    if fields is None:
        return ObjectMeta()
    meta = ObjectMeta(
        name=fields.text("name"),
        namespace=fields.text("namespace"),
        uid=fields.text("uid"),
        generate_name=fields.text("generateName"),
        resource_version=fields.text("resourceVersion"),
        creation_timestamp=timestamp(fields, "creationTimestamp"),
        deletion_timestamp=timestamp(fields, "deletionTimestamp"),
        labels=fields.text_map("labels"),
        annotations=fields.text_map("annotations"),
        owner_references=fields.objects("ownerReferences", _owner),
    )
    fields.ignore("generation", "finalizers", "managedFields", "selfLink", "deletionGracePeriodSeconds")
    fields.finish()
    return meta


def timestamp(fields: Fields, name: str) -> str:
    """An RFC 3339 time. YAML loaders make a datetime of an unquoted one."""
    value = fields.take(name)
    if value is None or isinstance(value, str):
        return value or ""
    if hasattr(value, "isoformat"):
        return str(value.isoformat()).replace("+00:00", "Z")
    raise fields.error(name, f"must be a time, not {json_type(value)}")


def _owner(fields: Fields) -> OwnerReference:
    owner = OwnerReference(
        fields.text("apiVersion"),
        fields.text("kind"),
        fields.text("name"),
        fields.text("uid"),
        fields.flag("controller"),
    )
    fields.ignore("blockOwnerDeletion")
    fields.finish()
    return owner


def node_selector(fields: Fields | None) -> NodeSelector | None:
    """A NodeSelector, None when absent."""
    if fields is None:
        return None
    selector = NodeSelector(fields.objects("nodeSelectorTerms", _node_selector_term))
    fields.finish()
    return selector


def _node_selector_term(fields: Fields) -> NodeSelectorTerm:
    term = NodeSelectorTerm(
        fields.objects("matchExpressions", _node_requirement), fields.objects("matchFields", _node_requirement)
    )
    fields.finish()
    return term


def _node_requirement(fields: Fields) -> NodeSelectorRequirement:
    requirement = NodeSelectorRequirement(
        fields.required_text("key"), fields.required_text("operator"), fields.texts("values")
    )
    fields.finish()
    return requirement


def selector(fields: Fields) -> str:
    """A CEL selector's expression."""
    cel = fields.required_object("cel")
    expression = cel.required_text("expression")
    cel.finish()
    fields.finish()
    return expression


def opaque(fields: Fields) -> OpaqueConfiguration:
    """The `opaque` part of a configuration."""
    opaque = fields.required_object("opaque")
    parameters = opaque.raw_object("parameters")
    if parameters is None:
        raise opaque.error("parameters", "is required")
    decoded = OpaqueConfiguration(opaque.required_text("driver"), parameters)
    opaque.finish()
    return decoded


def toleration(fields: Fields) -> DeviceToleration:
    """A device toleration."""
    toleration = DeviceToleration(
        key=fields.text("key"),
        operator=fields.text("operator") or "Equal",
        value=fields.text("value"),
        effect=fields.text("effect"),
        toleration_seconds=fields.integer("tolerationSeconds"),
    )
    fields.finish()
    return toleration


def decode_node(value: object, *, strict: bool = True) -> Node:
    """The metadata of a core/v1 Node and the names of its allocatable extended resources; the rest is not read."""
    top = Fields(value, strict=strict)
    metadata = object_meta(top)
    status = top.object("status")
    allocatable = (status.raw_object("allocatable") if status is not None else None) or {}
    if status is not None:
        status.ignore_rest()
    top.ignore_rest()
    offered = (name for name, amount in allocatable.items() if "/" in name and str(amount) != "0")
    return Node(metadata, frozenset(offered))
