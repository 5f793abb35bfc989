# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun snapshot`: all that decides about pods in a cluster, in a file that every question can be asked of.

Objects of resource.k8s.io are encoded from their decoded form, as resource.k8s.io/v1. Other objects, such as nodes and
pods, are reduced to the fields that affect decisions (`reduction`). A kind of which the cluster has no objects is an
empty list: otherwise one could not tell that there are none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import yaml

from ..kube.resource import (
    DeviceClass,
    DeviceStatus,
    DeviceTaintRule,
    Node,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from ..kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from ..kube.resource.codec import (
    V1,
    Decoded,
    encode_allocation,
    encode_claim_spec,
    encode_meta,
    encode_slice,
    encode_taint_rule,
)
from ..process.command import InputError
from .documents import list_of_lines
from .inventory import stored
from .options import Subcommand, general_options
from .progress import progress
from .pseudonyms import anonymise
from .reduction import reduced_object
from .report import object_format_option
from .rights import Needs
from .sources import Origin, opened, origin_options
from .unread import UNREAD_ANNOTATION
from .world import TEMPLATE

JSON = dict[str, Any]


@click.command(
    "snapshot",
    cls=Subcommand,
    examples=["dra-dryrun snapshot --anonymise -o json > cluster.json", "dra-dryrun --slices cluster.json claim.yaml"],
)
@origin_options
@click.option(
    "--anonymise",
    "anonymous",
    is_flag=True,
    help="Replace names of nodes, namespaces, pods, claims and other objects, labels, UUIDs, PCI addresses and the like"
    " by numbered ones, and leave out configuration. Names and taints of devices, DeviceClasses, models and names of"
    " resources stay: look before you share.",
)
@click.option("--devices-only", is_flag=True, help="Save only what decides about devices: no pods, no quotas.")
@object_format_option("How the objects are written. JSON is read much faster.")
@general_options
def snapshot(origin: Origin, anonymous: bool, devices_only: bool, output: str) -> None:
    """Write what decides about pods in a cluster, to be read with --slices.

    That is ResourceSlices, DeviceClasses, claims, nodes, pods without what they run, PodGroups and Workloads,
    namespaces, volumes, quotas, and the classes of pods and volumes. The cluster is that of the flags, or the current
    cluster, as for kubectl. It is only read.
    """
    if origin.is_built_in and not origin.asked:
        raise InputError("no cluster is configured: set --kubeconfig or KUBECONFIG, or give --built-in")
    needs = Needs(whole_pods=not devices_only, groups=not devices_only)
    with progress("reading the cluster") as say, opened(origin, needs=needs) as place:
        objects = list(encoded(place.read(devices_only=True, exactly=True).objects))
        if not devices_only:
            around, forbidden = place.around(_reduced)
            objects = [*(object_ for object_ in objects if object_["kind"] != "Node"), *around] if around else objects
            groups, unlisted = place.pod_groups(reduced_object)
            objects += groups
            if forbidden or unlisted:
                plurals = ", ".join((*forbidden, *unlisted))
                click.echo(f"note: not in the snapshot, as listing them is not allowed: {plurals}", err=True)
        say("writing")
        text = written(anonymise(objects) if anonymous else objects, output)
    click.echo(text, nl=False)


def written(documents: Sequence[JSON], output: str) -> str:
    """The documents as a YAML stream, or as one List in JSON with a line for each."""
    if output == "json":
        return list_of_lines(documents)
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=False, width=120
    )
    return text


def encoded(objects: Iterable[Decoded]) -> Iterator[JSON]:
    """The objects of a snapshot as JSON."""
    for object_ in objects:
        match object_:
            case ResourceSlice():
                yield _with_unread(
                    {**encode_slice(object_, V1), "metadata": {"name": object_.metadata.name}}, object_.unread
                )
            case DeviceTaintRule():
                yield _with_unread(
                    {**encode_taint_rule(object_), "metadata": {"name": object_.metadata.name}}, object_.unread
                )
            case DeviceClass():
                yield _with_unread(encode_class(object_), object_.unread)
            case ResourceClaim():
                yield _with_unread(_claim(object_), object_.unread)
            case Node():
                yield _node(object_)


def _with_unread(written: JSON, unread: Sequence[str]) -> JSON:
    """The object, with an annotation that names the fields that are not in the snapshot."""
    if not unread:
        return written
    metadata = written["metadata"]
    annotations = {**metadata.get("annotations", {}), UNREAD_ANNOTATION: " ".join(unread)}
    return {**written, "metadata": {**metadata, "annotations": annotations}}


def _reduced(value: Mapping[str, Any]) -> JSON:
    """An object around devices. Templates are encoded from their decoded form, as all objects of resource.k8s.io."""
    if value["kind"] != TEMPLATE:
        return reduced_object(value)
    template = stored(value)
    assert isinstance(template, ResourceClaimTemplate)
    metadata = {"name": template.metadata.name, "namespace": template.metadata.namespace or "default"}
    identity = {"apiVersion": V1.api_version, "kind": TEMPLATE, "metadata": metadata}
    return _with_unread({**identity, "spec": {"spec": encode_claim_spec(template.spec, V1)}}, template.unread)


class _Dumper(yaml.CSafeDumper):
    """Writes repeated values in full, because anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def encode_class(class_: DeviceClass) -> JSON:
    """A DeviceClass as resource.k8s.io/v1."""
    opaque = ({"driver": config.driver, "parameters": dict(config.parameters)} for config in class_.config)
    spec = {
        "selectors": [{"cel": {"expression": expression}} for expression in class_.selectors],
        "config": [{"opaque": config} for config in opaque],
        "extendedResourceName": class_.extended_resource_name,
    }
    metadata = {"name": class_.metadata.name}
    if class_.metadata.creation_timestamp:  # of two classes for one extended resource the newer counts
        metadata["creationTimestamp"] = class_.metadata.creation_timestamp
    given = {name: value for name, value in spec.items() if value}
    return {"apiVersion": V1.api_version, "kind": "DeviceClass", "metadata": metadata, "spec": given}


def _claim(claim: ResourceClaim) -> JSON:
    """The claim, with what tells for which pod it was made, when, and whether it is being deleted."""
    meta = claim.metadata
    annotations = {key: value for key, value in meta.annotations.items() if key == EXTENDED_CLAIM_ANNOTATION}
    kept = replace(meta, generate_name="", resource_version="", labels={}, annotations=annotations)
    times = {"creationTimestamp": meta.creation_timestamp, "deletionTimestamp": meta.deletion_timestamp}
    found: JSON = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaim",
        "metadata": {**encode_meta(kept), **{name: time for name, time in times.items() if time}},
        "spec": encode_claim_spec(claim.spec, V1),
    }
    status: JSON = {}
    if claim.allocation is not None:
        status["allocation"] = encode_allocation(claim.allocation)
    if claim.reserved_for:
        status["reservedFor"] = [{"resource": by.resource, "name": by.name, "uid": by.uid} for by in claim.reserved_for]
    if claim.device_statuses:
        status["devices"] = [_device_status(reported) for reported in claim.device_statuses]
    return {**found, "status": status} if status else found


def _device_status(status: DeviceStatus) -> JSON:
    conditions = [{"type": name, "status": "True"} for name in sorted(status.conditions)]
    return {"driver": status.driver, "pool": status.pool, "device": status.device, "conditions": conditions}


def _node(node: Node) -> JSON:
    metadata = encode_meta(ObjectMeta(name=node.name, labels=node.metadata.labels))
    found: JSON = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    if node.plugin_resources:
        found["status"] = {"allocatable": dict.fromkeys(sorted(node.plugin_resources), "1")}
    return found
