# SPDX-License-Identifier: Apache-2.0
"""Kueue's objects, reduced to what decides whether a queue has quota: queues, cohorts, flavors, and the configuration.

The fields are those of kueue.x-k8s.io/v1beta2 and config.kueue.x-k8s.io/v1beta2 (Kueue 0.19); v1beta1 has the same
fields, but `cohort` for `cohortName`. The configuration is an object of a file, or the ConfigMap of Kueue's manager.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from ...errors import QuantityError
from ...kube.api import ApiClient, NotFoundError, StatusError, served_versions
from ...kube.kinds import CONFIG_MAPS, kind_named
from ...kube.resource import Quantity
from ...process.command import InputError
from ..documents import Document, each, within
from ..rights import FORBIDDEN
from ..sources import Place
from ..status import Note

JSON = Mapping[str, Any]

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
GROUP: Final = "kueue.x-k8s.io"
_KINDS: Final = {"ClusterQueue": False, "LocalQueue": True, "ResourceFlavor": False, "Cohort": False}
"""The kinds that are read, and whether their objects are in namespaces."""
_CONFIGURATION: Final = ("kueue-system", "kueue-manager-config", "controller_manager_config.yaml")
"""The namespace and the name of the ConfigMap with Kueue's configuration, and the key in it."""
CAPACITY_GATE: Final = "KueueDRAIntegrationConsumableCapacity"


@dataclass(frozen=True, slots=True)
class ChargeSource:
    """What is charged for a device instead of 1: a counter that the device consumes, or one of its capacities.

    Only devices of `driver` that `selector` selects count. `is_counter` is false for a capacity.
    """

    is_counter: bool
    name: str
    driver: str
    selector: str


@dataclass(frozen=True, slots=True)
class ClassMapping:
    """The name of a quota for DeviceClasses. Without `sources`, each device counts as 1."""

    resource: str
    classes: tuple[str, ...]
    sources: tuple[ChargeSource, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The quota of a resource of a flavor. Without a limit, all may be borrowed, or lent."""

    nominal: Quantity
    borrowing: Quantity | None = None
    lending: Quantity | None = None


FlavorResource = tuple[str, str]
"""The names of a flavor and of a resource."""


@dataclass(frozen=True, slots=True)
class QuotaGroup:
    """Resources that get the same flavor. The flavors are tried in order."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuotaNode:
    """A ClusterQueue or a Cohort: its quotas, and the cohort that it belongs to, empty if there is none.

    `used` is what the admitted workloads of a ClusterQueue have reserved. `stopped` is set if it admits nothing, and
    `preempts` if it may remove workloads for others.
    """

    name: str
    parent: str
    groups: tuple[QuotaGroup, ...]
    limits: Mapping[FlavorResource, QuotaLimits]
    used: Mapping[FlavorResource, Quantity] = field(default_factory=dict)
    stopped: bool = False
    preempts: bool = False


@dataclass(frozen=True, slots=True)
class FlavorFacts:
    """A ResourceFlavor: the labels and taints of its nodes, and the tolerations that pods get."""

    labels: Mapping[str, str]
    taints: tuple[JSON, ...] = ()
    tolerations: tuple[JSON, ...] = ()


@dataclass(frozen=True)
class Kueue:
    """All of it. `local` has the ClusterQueue of each LocalQueue, by namespace and name, and whether it is stopped.

    `mappings` are None if the configuration is not known. `unknown` are notes about objects that may not be read.
    """

    queues: Mapping[str, QuotaNode] = field(default_factory=dict)
    local: Mapping[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    cohorts: Mapping[str, QuotaNode] = field(default_factory=dict)
    flavors: Mapping[str, FlavorFacts] = field(default_factory=dict)
    mappings: tuple[ClassMapping, ...] | None = None
    gates: Mapping[str, bool] = field(default_factory=dict)
    unknown: tuple[Note, ...] = ()

    def mapping_of(self, device_class: str) -> ClassMapping | None:
        """The mapping of a DeviceClass. The first one counts."""
        return next((mapping for mapping in self.mappings or () if device_class in mapping.classes), None)


def kueue_of(objects: Iterable[JSON], unknown: Sequence[Note] = ()) -> Kueue:
    """Kueue's objects among objects (JSON). Others are passed over. Raises InputError."""
    by_kind: dict[str, list[JSON]] = {}
    for value in objects:
        group, kind = str(value.get("apiVersion")).rpartition("/")[0], str(value.get("kind"))
        if group == GROUP or kind in ("Configuration", "ConfigMap"):
            by_kind.setdefault(kind, []).append(value)
    configuration = _configuration(by_kind)
    mappings = None
    if configuration is not None:
        mappings = tuple(map(_mapping, each(configuration, "resources", "deviceClassMappings")))
    return Kueue(
        {_name(value): _queue(value) for value in by_kind.get("ClusterQueue", ())},
        {
            (_namespace(value), _name(value)): (
                str(within(value, "spec").get("clusterQueue") or ""),
                _is_stopped(within(value, "spec")),
            )
            for value in by_kind.get("LocalQueue", ())
        },
        {_name(value): _cohort(value) for value in by_kind.get("Cohort", ())},
        {_name(value): _flavor(value) for value in by_kind.get("ResourceFlavor", ())},
        mappings,
        {name: bool(on) for name, on in within(configuration, "featureGates").items()},
        tuple(unknown),
    )


def kueue_at(place: Place, documents: Iterable[Document]) -> Kueue:
    """Kueue's objects of a place and among documents. Raises ApiError and InputError."""
    found: list[JSON] = [document.value for document in (*documents, *place.documents)]
    unknown: list[Note] = []
    if place.connection is not None:
        more, unknown = _of_cluster(ApiClient(place.connection))
        found += more
    return kueue_of(found, unknown)


def _of_cluster(client: ApiClient) -> tuple[list[JSON], list[Note]]:
    """Kueue's objects of a cluster, and notes about kinds that the user may not read. Raises ApiError."""
    found: list[JSON] = []
    unknown: list[Note] = []
    try:
        version = next(served_versions(client, GROUP), "")
    except NotFoundError:
        version = ""
    for kind, namespaced in _KINDS.items() if version else ():
        where = kind_named(version, kind, namespaced=namespaced)
        try:
            found += ({"apiVersion": version, "kind": kind, **value} for value in client.list(where).items)
        except NotFoundError:
            continue
        except StatusError as error:
            if error.status != FORBIDDEN:
                raise
            unknown.append(Note("Kueue", f"listing {where.plural} is not allowed"))
    namespace, name, _ = _CONFIGURATION
    try:
        value = client.get(CONFIG_MAPS, name, namespace) if version else {}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", **value})
    except NotFoundError:
        pass
    except StatusError as error:
        if error.status != FORBIDDEN:
            raise
        unknown.append(Note("Kueue", f"getting ConfigMap {namespace}/{name}, its configuration, is not allowed"))
    return found, unknown


def _configuration(by_kind: Mapping[str, Sequence[JSON]]) -> JSON | None:
    """The configuration: an object of a file, or the text in the ConfigMap of Kueue's manager."""
    for value in by_kind.get("Configuration", ()):
        if str(value.get("apiVersion")).startswith("config.kueue.x-k8s.io/"):
            return value
    key = _CONFIGURATION[2]
    for value in by_kind.get("ConfigMap", ()):
        text = within(value, "data").get(key)
        if isinstance(text, str):
            try:
                read = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise InputError(f"ConfigMap {_namespace(value)}/{_name(value)}: {key} is not YAML: {error}") from None
            return read if isinstance(read, dict) else {}
    return None


def _mapping(value: JSON) -> ClassMapping:
    names = value.get("deviceClassNames")
    sources = tuple(source for entry in each(value, "sources") for source in _sources(entry))
    classes = tuple(map(str, names)) if isinstance(names, list) else ()
    return ClassMapping(str(value.get("name") or ""), classes, sources)


def _sources(entry: JSON) -> Iterator[ChargeSource]:
    for kind in ("counter", "capacity"):
        source = within(entry, kind)
        if source:
            expression = within(source, "deviceSelector", "cel").get("expression")
            yield ChargeSource(
                kind == "counter", str(source.get("name")), str(source.get("driver")), str(expression or "true")
            )


def _queue(value: JSON) -> QuotaNode:
    spec = within(value, "spec")
    status = within(value, "status")
    preemption = within(spec, "preemption")
    reserved = status.get("flavorsReservation") or status.get("flavorsUsage")
    used = {
        (str(flavor.get("name")), str(resource.get("name"))): _quantity(value, resource.get("total"))
        for flavor in (reserved if isinstance(reserved, list) else ())
        for resource in each(flavor, "resources")
    }
    policies = (preemption.get("withinClusterQueue"), preemption.get("reclaimWithinCohort"))
    return QuotaNode(
        _name(value),
        str(spec.get("cohortName") or spec.get("cohort") or ""),
        _groups(spec),
        _limits(value, spec),
        used,
        _is_stopped(spec),
        any(policy not in (None, "Never") for policy in policies),
    )


def _cohort(value: JSON) -> QuotaNode:
    spec = within(value, "spec")
    return QuotaNode(
        _name(value), str(spec.get("parentName") or spec.get("parent") or ""), _groups(spec), _limits(value, spec)
    )


def _groups(spec: JSON) -> tuple[QuotaGroup, ...]:
    return tuple(
        QuotaGroup(
            tuple(map(str, group.get("coveredResources") or ())),
            tuple(str(flavor.get("name")) for flavor in each(group, "flavors")),
        )
        for group in each(spec, "resourceGroups")
    )


def _limits(value: JSON, spec: JSON) -> dict[FlavorResource, QuotaLimits]:
    return {
        (str(flavor.get("name")), str(resource.get("name"))): QuotaLimits(
            _quantity(value, resource.get("nominalQuota")),
            _optional(value, resource.get("borrowingLimit")),
            _optional(value, resource.get("lendingLimit")),
        )
        for group in each(spec, "resourceGroups")
        for flavor in each(group, "flavors")
        for resource in each(flavor, "resources")
    }


def _flavor(value: JSON) -> FlavorFacts:
    spec = within(value, "spec")
    labels = {str(key): str(label) for key, label in within(spec, "nodeLabels").items()}
    return FlavorFacts(labels, tuple(each(spec, "nodeTaints")), tuple(each(spec, "tolerations")))


def _is_stopped(spec: JSON) -> bool:
    return spec.get("stopPolicy") not in (None, "", "None")


def _optional(value: JSON, amount: object) -> Quantity | None:
    return None if amount is None else _quantity(value, amount)


def _quantity(value: JSON, amount: object) -> Quantity:
    try:
        return Quantity.parse(str(amount or "0"))
    except QuantityError as error:
        raise InputError(f"{value.get('kind')} {_name(value)}: {amount!r} is not an amount: {error}") from None


def _name(value: JSON) -> str:
    return str(within(value, "metadata").get("name") or "")


def _namespace(value: JSON) -> str:
    return str(within(value, "metadata").get("namespace") or "default")
