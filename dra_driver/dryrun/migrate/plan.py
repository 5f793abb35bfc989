# SPDX-License-Identifier: Apache-2.0
"""The plan: the driver's policy for the nodes, the chart's values, and a DeviceClass for each resource of the plugins.

MIG devices stay those of the administrator (`mig: static`), so each resource means the devices that it means today. A
DeviceClass cannot select nodes. If one resource means shared devices and another one exclusive devices of the same
kind, the capacity `shares` tells them apart; if nothing does, a note says so.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ...kube.releases import API_VERSIONS, minor_of
from ...kube.resource import DeviceClass, ObjectMeta
from ...kube.resource.codec import V1, V1BETA2
from ...names import DRIVER_NAME
from ...scheduler.allocator import Features
from ..documents import each
from ..inventory import CLASSES
from ..report import listed
from ..snapshot import encode_class
from .configs import GPU, profile_of, resource_of
from .gpu_operator import GpuOperator
from .nodes import GpuNode

JSON = dict[str, Any]

_ATTRIBUTES: Final = f"device.attributes['{DRIVER_NAME}']"
_SHARED: Final = f"has(device.capacity['{DRIVER_NAME}'].shares)"
_WHICH: Final = {"mig": "profile", "vfio": "deviceID"}
_OURS: Final = ".extended.nvidia.com"
"""The end of the names of DeviceClasses that the chart does not create."""
_TOLERATED: Final = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
"""What the chart's DaemonSet tolerates by default."""

Meaning = tuple[str, str, bool]
"""The type of devices, the profile or device id, and whether they are shared."""


@dataclass(frozen=True, slots=True)
class Need:
    """A feature gate of the cluster, for what it is needed, and whether the cluster has it."""

    gate: str
    purpose: str
    met: bool


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The objects to install. `classes` are the DeviceClasses by resource. `manifests` are the objects that the chart
    does not create.
    """

    nodes: tuple[GpuNode, ...]
    values: JSON
    classes: Mapping[str, DeviceClass]
    manifests: tuple[JSON, ...]
    needs: tuple[Need, ...]
    notes: tuple[str, ...]

    def all_classes(self) -> list[DeviceClass]:
        """Every DeviceClass that the cluster will have."""
        served = {class_.metadata.name for class_ in self.classes.values()}
        return [*self.classes.values(), *(class_ for class_ in CLASSES if class_.metadata.name not in served)]


def plan_of(nodes: Sequence[GpuNode], features: Features, operator: GpuOperator | None = None) -> MigrationPlan:
    """The plan for the nodes of a cluster with these features, and with the GPU Operator if it has one."""
    meanings: dict[str, set[Meaning]] = defaultdict(set)
    for offer in (offer for node in nodes for offer in node.offers()):
        meanings[offer.resource].add((offer.type, offer.which, offer.shares > 1))
    classes = {resource: _class(resource, meanings) for resource in sorted(meanings)}
    version = api_version(features)
    made = {  # older versions have no names of extended resources
        resource: class_ if version == V1.api_version else replace(class_, extended_resource_name="")
        for resource, class_ in classes.items()
    }
    shares = any(shared for found in meanings.values() for _, _, shared in found)
    needs = [Need("DRAExtendedResource", "extended resources of pods", features.extended_resources)]
    needs += [Need("DRAConsumableCapacity", "shared GPUs", features.consumable_capacity)] if shares else []
    of_operator = operator.driver_root if operator is not None else ""
    roots = sorted({node.config.driver_root or of_operator or node.facts.driver_root for node in nodes} - {""})
    taints = _taints(nodes)
    values: JSON = {
        "policy": _policy(nodes),
        "deviceClasses": _chart_classes(made),
        "mps": {"enabled": True} if any(node.config.mps for node in nodes) else {},
        "nvidiaDriverRoot": roots[0] if roots else "",
        "kubeletPlugin": {"tolerations": [_TOLERATED, *taints]} if taints else {},
    }
    values = {name: value for name, value in values.items() if value}
    values |= operator.chart_values() if operator is not None else {}
    told: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for note in dict.fromkeys((*node.notes, *_unequal(node), *_spreading(node))):
            told[note].append(node.name)
    notes = [f"{listed(names)}: {note}" for note, names in told.items()]
    if len(roots) > 1:
        notes.append(f"the nodes have several driver roots ({', '.join(roots)}): a release of the chart has one")
    if any("nodes" in rule.get("match", {}) for rule in values.get("policy", {}).get("gpus", ())):
        notes.append("the policy names nodes: a node that joins later has to be added, unless a pattern matches it")
    return MigrationPlan(
        tuple(nodes),
        values,
        classes,
        tuple(
            {**encode_class(class_), "apiVersion": version}
            for class_ in made.values()
            if class_.metadata.name.endswith(_OURS)
        ),
        tuple(needs),
        (*(operator.notes(nodes) if operator is not None else ()), *notes, *_ambiguous(meanings)),
    )


def api_version(features: Features) -> str:
    """The version of resource.k8s.io that the release serves."""
    return (V1 if minor_of(features.release) >= API_VERSIONS["v1"].first else V1BETA2).api_version


def _policy(nodes: Sequence[GpuNode]) -> JSON:
    """The value `policy`: rules for groups of equal nodes, without names if all nodes are equal."""
    groups: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        groups[json.dumps(list(_rules(node)))].append(node.name)
    found: JSON = {}
    for encoded, names in groups.items():
        for rule in json.loads(encoded):
            match = {**rule.pop("match", {}), **({"nodes": names} if len(groups) > 1 else {})}
            found.setdefault("gpus", []).append({"match": match, **rule} if match else rule)
    xids = sorted({xid for node in nodes for xid in node.config.application_xids if node.config.health})
    return {**found, "health": {"applicationXIDs": xids}} if xids else found


def _rules(node: GpuNode) -> Iterator[JSON]:
    """The rules of the policy for one node, without its name."""
    by_shares: dict[int, list[int]] = defaultdict(list)
    for index, gpu in enumerate(node.gpus):
        by_shares[max((offer.shares for offer in node.offers_of(gpu)), default=1)].append(index)
    rule: JSON = {"mig": "static"} if node.config.mig_strategy != "none" else {}
    rule |= {"passthrough": True} if node.machines else {}
    rule |= {} if node.config.health else {"health": False}
    additional = [device.value for device in node.config.additional_devices]
    rule |= {"additionalDevices": additional} if additional else {}
    modes = {most: {"mode": most, "enforce": "mps"} if node.config.mps else most for most in by_shares if most > 1}
    if len(by_shares) == 1 and modes:
        rule["shares"] = next(iter(modes.values()))
    if rule:
        yield rule
    if len(by_shares) > 1:
        yield from ({"match": {"indexes": by_shares[most]}, "shares": mode} for most, mode in modes.items())


def _unequal(node: GpuNode) -> Iterator[str]:
    for gpu in dict.fromkeys(node.gpus):
        offered = {offer.resource: offer.shares for offer in node.offers_of(gpu)}
        if len(set(offered.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in offered.items())
            most = max(offered.values())
            yield f"one GPU has different numbers of shares ({counts}): the policy has one for a GPU, here {most}"


def _spreading(node: GpuNode) -> Iterator[str]:
    """Shares that the plugin spreads over GPUs, and the scheduler does not."""
    shared = any(offer.shares > 1 for offer in node.offers() if offer.type != "vfio")
    if shared and len(node.gpus) > 1 and not node.config.packed:
        yield (
            "the device plugin spreads pods with shares over the GPUs of a node, and with DRA the scheduler fills a GPU"
            " before it uses the next one. docs/reference/migrate.md, Spreading pods over GPUs, says how to spread them"
        )


def _class(resource: str, meanings: Mapping[str, set[Meaning]]) -> DeviceClass:
    """The DeviceClass of a resource: one of the chart's if its devices are the same."""
    own = meanings[resource]
    others = {meaning for name, found in meanings.items() if name != resource for meaning in found} - own
    terms = {}
    for kind, which, shared in sorted(own):
        selected = [f"{_ATTRIBUTES}.type == '{kind}'"]
        selected += [f"{_ATTRIBUTES}.{_WHICH[kind]} == '{which}'"] if which else []
        selected += [_SHARED if shared else f"!{_SHARED}"] if (kind, which, not shared) in others else []
        terms[kind, which] = " && ".join(selected)
    plain, kinds = not any(_SHARED in term for term in terms.values()), {kind for kind, _ in terms}
    name = f"{_word(resource.partition('/')[2])}{_OURS}"
    if resource == GPU and plain and kinds == {"gpu"}:
        name = "gpu.nvidia.com"
    elif resource == GPU and plain and kinds == {"mig"} and not any(kind == "mig" for kind, _, _ in others):
        name, terms = "mig.nvidia.com", {("mig", ""): f"{_ATTRIBUTES}.type == 'mig'"}
    elif plain and (profile := profile_of(resource)) is not None and resource == resource_of(profile):
        name = f"mig-{_word(profile)}.nvidia.com"
    each = list(terms.values())
    joined = each[0] if len(each) == 1 else f"({' || '.join(f'({term})' for term in each)})"
    return DeviceClass(
        ObjectMeta(name=name), (f"device.driver == '{DRIVER_NAME}' && {joined}",), extended_resource_name=resource
    )


def _word(name: str) -> str:
    """A name as a DeviceClass may have it."""
    return re.sub("[^a-z0-9.]+", "-", name.lower().replace("+", ".")).strip("-.")


def _chart_classes(classes: Mapping[str, DeviceClass]) -> JSON:
    """The chart's value `deviceClasses`."""
    found: JSON = {}
    for resource, class_ in classes.items():
        name = class_.metadata.name
        if name not in ("gpu.nvidia.com", "mig.nvidia.com") and not name.endswith(_OURS):
            found.setdefault("migProfiles", []).append(profile_of(resource))
        elif class_.extended_resource_name and not name.endswith(_OURS):
            found[name.partition(".")[0]] = {"extendedResourceName": resource}
    return found


def _ambiguous(meanings: Mapping[str, set[Meaning]]) -> Iterator[str]:
    """Resources that mean the same devices on different nodes."""
    by_meaning: dict[Meaning, list[str]] = defaultdict(list)
    for resource in sorted(meanings):
        for meaning in meanings[resource]:
            by_meaning[meaning].append(resource)
    for (kind, which, _), names in sorted(by_meaning.items()):
        if len(names) > 1:
            what = " ".join(filter(None, (kind, which)))
            yield f"{' and '.join(names)} each get {what} devices of all nodes: a DeviceClass cannot select nodes"


def _taints(nodes: Iterable[GpuNode]) -> list[JSON]:
    """Tolerations for the taints of GPU nodes that the chart's DaemonSet does not tolerate."""
    taints = (taint for node in nodes for taint in each(node.value, "spec", "taints"))
    keys = dict.fromkeys((str(taint.get("key")), str(taint.get("effect"))) for taint in taints)
    wanted = [key for key in keys if key != (GPU, "NoSchedule") and not key[0].startswith("node.kubernetes.io/")]
    return [{"key": key, "operator": "Exists", "effect": effect} for key, effect in wanted]
