# SPDX-License-Identifier: Apache-2.0
"""The facts of nodes, slices and claims that this process keeps, whatever uses them. Pure.

A slice of GPUs is known by its metadata, because this driver's slices have their Node as owner, by name and UID. Only a
slice without such an owner has to be read as a whole. Of a slice with a channel, the channel is known, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dra_driver.config import ConfigError, decode_domain_config
from dra_driver.domains.names import CHANNEL_DEVICE, CLIQUE_ATTRIBUTE, DOMAIN_LABEL, DRIVER, FABRIC_TAINT
from dra_driver.kube.api.client import JSON
from dra_driver.kube.resource.names import is_label_value, is_subdomain


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """An existing Node, and the UID of the ComputeDomain in its label."""

    name: str
    uid: str
    label: str = ""
    resource_version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ChannelFacts:
    """The channel that a node publishes, and its clique. `settled` is false while its NVLink fabric is not ready, and
    if the clique is not a valid name.
    """

    node: str
    clique: str
    settled: bool


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """A ResourceSlice of ours. `node` and `owner_uid` are those of the owner. If the owner is not a Node, `node` is the
    one in the spec, or None if that is not known. A change of only the resource version does not matter.
    """

    name: str
    uid: str
    node: str | None
    owner_uid: str | None = None
    resource_version: str = field(default="", compare=False)
    channel: ChannelFacts | None = None


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A ResourceClaim with devices of our drivers, as (pool, device), and the pods and PodGroups for which it is
    reserved. `channels` are those among the devices, as (node, UID of the ComputeDomain).
    """

    namespace: str
    name: str
    uid: str
    devices: tuple[tuple[str, str], ...]
    pods: tuple[str, ...] = ()
    pod_groups: tuple[str, ...] = ()
    channels: tuple[tuple[str, str], ...] = ()


def node_facts(value: JSON) -> NodeFacts:
    """The facts of a Node or its PartialObjectMetadata."""
    meta = value["metadata"]
    label = (meta.get("labels") or {}).get(DOMAIN_LABEL) or ""
    return NodeFacts(meta["name"], meta["uid"], label, meta["resourceVersion"])


def slice_facts(value: JSON) -> SliceFacts:
    """The facts of a slice in any version of the API, or of its PartialObjectMetadata."""
    meta, spec = value["metadata"], value.get("spec") or {}
    owners = [ref for ref in meta.get("ownerReferences") or [] if (ref["apiVersion"], ref["kind"]) == ("v1", "Node")]
    node, owner_uid = (owners[0]["name"], owners[0]["uid"]) if owners else (spec.get("nodeName") or None, None)
    return SliceFacts(meta["name"], meta["uid"], node, owner_uid, meta["resourceVersion"], _channel(spec))


def _channel(spec: JSON) -> ChannelFacts | None:
    """The channel in a slice. None without a node or a channel."""
    channel = _first_channel(spec)
    if channel is None or not spec.get("nodeName"):
        return None
    device = channel.get("basic") or channel  # v1beta1
    clique = ((device.get("attributes") or {}).get(CLIQUE_ATTRIBUTE) or {}).get("string") or ""
    valid = not clique or (is_subdomain(clique) and is_label_value(clique))  # it is part of an object's name
    settled = valid and not any(taint["key"] == FABRIC_TAINT for taint in device.get("taints") or [])
    return ChannelFacts(spec["nodeName"], clique, settled)


def _first_channel(spec: JSON) -> JSON | None:
    return next((device for device in spec.get("devices") or [] if _is_channel(device["name"])), None)


def _is_channel(device: str) -> bool:
    return device == CHANNEL_DEVICE or device.startswith(f"{CHANNEL_DEVICE}-")


def claim_facts(value: JSON, drivers: Sequence[str]) -> ClaimFacts | None:
    """The facts of a claim in any version of the API, because their statuses are alike. None without devices
    of `drivers`.
    """
    meta, status = value["metadata"], value.get("status") or {}
    allocated = (status.get("allocation") or {}).get("devices") or {}
    results = [result for result in allocated.get("results") or [] if result["driver"] in drivers]
    if not results:
        return None
    devices = tuple((result["pool"], result["device"]) for result in results)
    channels = tuple(
        (result["pool"], _domain_of(result["request"], allocated.get("config") or []))
        for result in results
        if result["driver"] == DRIVER and _is_channel(result["device"])
    )
    users = [(user.get("resource"), user["name"]) for user in status.get("reservedFor") or []]
    pods, groups = (tuple(name for kind, name in users if kind == wanted) for wanted in ("pods", "podgroups"))
    return ClaimFacts(meta["namespace"], meta["name"], meta["uid"], devices, pods, groups, channels)


def _domain_of(request: str, configs: Iterable[JSON]) -> str:
    """The UID in the last configuration of a request, or nothing."""
    found = ""
    for config in configs:
        opaque, requests = config.get("opaque") or {}, config.get("requests") or []
        if opaque.get("driver") == DRIVER and (not requests or {request, request.partition("/")[0]} & set(requests)):
            try:
                found = decode_domain_config(opaque.get("parameters")).domain
            except ConfigError:
                continue  # the plugin tells that
    return found


def only_node(value: JSON) -> JSON:
    """The needed fields of a node."""
    return {"metadata": _metadata(value, "name", "uid", "resourceVersion", "labels")}


def only_slice(value: JSON) -> JSON:
    """The needed fields of a slice, or of its PartialObjectMetadata."""
    spec = value.get("spec") or {}
    channel = _first_channel(spec)
    return {
        "metadata": _metadata(value, "name", "uid", "resourceVersion", "ownerReferences"),
        "spec": {"nodeName": spec.get("nodeName"), "devices": [] if channel is None else [channel]},
    }


def only_allocation(value: JSON) -> JSON:
    """The needed fields of a claim."""
    status = value.get("status") or {}
    return {
        "metadata": _metadata(value, "namespace", "name", "uid", "resourceVersion"),
        "status": {key: status[key] for key in ("allocation", "reservedFor") if key in status},
    }


def _metadata(value: JSON, *names: str) -> JSON:
    return {name: value["metadata"][name] for name in names if name in value["metadata"]}
