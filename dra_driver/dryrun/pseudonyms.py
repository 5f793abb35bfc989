# SPDX-License-Identifier: Apache-2.0
"""Replaces the names in a snapshot. The scheduler's decisions stay the same.

The scheduler goes through pools and slices by name, so pseudonyms are numbered in the order of the names. Equal values
get equal pseudonyms: a UUID in an attribute and in the expression that asks for it. The objects are gone through three
times in the same way. The first pass collects names. The second one replaces them, and collects the UUIDs and PCI
addresses inside of texts, which the third one replaces. Only an expression that takes such a name apart may decide
otherwise than before.

In nodes, pods and related objects (`reduction`), fields are found by name. Names of pods, volumes, quotas, classes of
pods and volumes, containers and so on are all of one sort, `object`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ..kube.resource.codec import GROUP
from ..kube.resource.names import is_label_key, is_label_value
from ..scheduler.allocator.nodes import NODE_NAME_FIELD
from ..scheduler.pods.decode import ANY_ADDRESS

JSON = dict[str, Any]

Rename = Callable[[str, str], str]
"""(what it is the name of, the name) -> the name to use."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PCI_ADDRESS: Final = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_PARTS: Final = frozenset({"uuid", "pci"})
"""What is replaced inside of texts, after names as a whole."""
_LITERAL: Final = re.compile(r"""(["'])((?:\\.|(?!\1).)*)\1""")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_IDENTIFYING: Final = frozenset(
    {"serial", "serialnumber", "mac", "macaddress", "ip", "ipv4", "ipv6", "hostname", "nodename"}
)
"""Attributes (in lower case, without a domain) whose values name one thing."""
_PUBLIC_DOMAINS: Final = ("kubernetes.io", "k8s.io", "nvidia.com")
"""Of label keys that stay."""
_PUBLIC_LABELS: Final = frozenset({"kubernetes.io/os", "kubernetes.io/arch"})
"""Labels that keep their values, as those of nvidia.com do."""
_NAMESPACED: Final = frozenset(
    {"Pod", "PersistentVolumeClaim", "LimitRange", "ResourceQuota", "PodDisruptionBudget"}
    | {"ResourceClaim", "ResourceClaimTemplate", "CSIStorageCapacity", "PodGroup", "Workload"}
)
_DEFAULT: Final = "default"
_OF_KUBERNETES: Final = "kube-"
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_SEVERAL: Final = "__"
"""Stands between the zones of a volume that is in several."""
_NAMESPACE: Final = "kubernetes.io/metadata.name"
_OF_STORAGE_CLASS: Final = ".storageclass.storage.k8s.io/"
_OBJECTS: Final = frozenset(
    {"name", "uid", "resourceClaimTemplateName", "priorityClassName", "runtimeClassName", "claimName", "volumeName"}
    | {"storageClassName", "volume.beta.kubernetes.io/storage-class", "volumeAttributesClassName", "provisioner"}
    | {"driver", "volumeHandle", "pdName", "volumeID", "iqn", "image", "pool", "hostIP"}
    | {"podGroup", "podGroupName", "parentCompositePodGroupName", "schedulerName"}
)
"""Fields with the name of an object or of a part of it, or with what identifies one elsewhere."""
_LEFT: Final = frozenset({"counters", "capacity", "consumedCapacity"})
"""Maps whose keys are a driver's own words."""


def anonymise(documents: Sequence[JSON]) -> list[JSON]:
    """The objects of a snapshot under other names, without configurations. Done twice, it changes nothing more."""
    names: dict[str, set[str]] = defaultdict(set)

    def collect(what: str, name: str) -> str:
        names[what].add(name)
        return name

    documents = [_Object(document, collect).renamed() for document in map(_in_namespace, documents)]
    tables = _names(names)
    parts: dict[str, set[str]] = defaultdict(set)

    def rename(what: str, name: str) -> str:
        if what in _PARTS:
            parts[what].add(name)
        return tables.get(what, {}).get(name, name)

    documents = [_Object(document, rename).renamed() for document in documents]
    patterns = _parts_of_names(parts)
    return [
        _Object(document, lambda what, name: patterns.get(what, {}).get(name, name)).renamed() for document in documents
    ]


def _in_namespace(object_: JSON) -> JSON:
    """The object with its namespace. Adds the namespace `default` if the object names none."""
    if object_["kind"] not in _NAMESPACED or object_["metadata"].get("namespace"):
        return object_
    return {**object_, "metadata": {**object_["metadata"], "namespace": _DEFAULT}}


def _names(found: Mapping[str, set[str]]) -> Mapping[str, Mapping[str, str]]:
    """Names as a whole. A label or attribute may have the name of a node."""
    nodes = _numbered("node-{}", found["node"])
    ids = {**_numbered("id-{}", found["id"] - nodes.keys()), **nodes}
    return {
        "node": nodes,
        "pool": nodes if found["pool"] <= nodes.keys() else _numbered("pool-{}", found["pool"]),
        "value": {**_numbered("value-{}", found["value"] - nodes.keys()), **nodes},
        "id": ids,
        "text": ids,
        "namespace": _namespaces(found["namespace"]),
        **{what: _numbered(what + "-{}", found[what]) for what in ("slice", "claim", "label", "object")},
    }


def _namespaces(names: Iterable[str]) -> dict[str, str]:
    """Namespaces that every cluster has keep their names. The others keep their places in the order of all names."""
    others = [name for name in names if name != _DEFAULT and not name.startswith(_OF_KUBERNETES)]
    found: dict[str, str] = {}
    for form, first, last in (
        ("a-namespace-{}", "", _DEFAULT),
        ("e-namespace-{}", _DEFAULT, _OF_KUBERNETES),
        ("namespace-{}", _OF_KUBERNETES, "~"),
    ):
        found |= _numbered(form, [name for name in others if first <= name < last])
    return found


def _parts_of_names(found: Mapping[str, set[str]]) -> Mapping[str, Mapping[str, str]]:
    """Patterns that are replaced inside of texts, such as UUIDs. The pseudonym has the same form."""
    addresses = {text: f"{number >> 8:04x}:{number & 255:02x}:00.0" for number, text in enumerate(sorted(found["pci"]))}
    uuids = {text: f"00000000-0000-0000-0000-{number:012x}" for number, text in enumerate(sorted(found["uuid"]))}
    return {"pci": addresses, "uuid": uuids}


def _numbered(form: str, names: Iterable[str]) -> dict[str, str]:
    """Pseudonyms in the order of the names, which numbers of one length keep."""
    ordered = sorted(names)
    width = len(str(len(ordered)))
    return {name: form.format(f"{number:0{width}}") for number, name in enumerate(ordered, start=1)}


class _Object:
    """An object of a snapshot. The name of a field determines what it contains.

    Objects of resource.k8s.io have rules of their own, because names of requests, devices and taints stay.
    """

    def __init__(self, object_: JSON, rename: Rename) -> None:
        self._whole = object_
        self._rename = rename

    def renamed(self) -> JSON:
        """The object under other names."""
        whole = self._whole
        if "items" in whole:  # an empty list
            return whole
        rest = {key: value for key, value in whole.items() if key not in ("apiVersion", "kind", "metadata")}
        identity = {"apiVersion": whole["apiVersion"], "kind": whole["kind"]}
        of_devices = whole["apiVersion"].partition("/")[0] == GROUP
        fields = self._of_devices(rest) if of_devices else self._around(rest)
        others = {key: value for key, value in whole["metadata"].items() if key != "name"}
        return {**identity, "metadata": {"name": self._own_name(), **self._around(others)}, **fields}

    def _own_name(self) -> str:
        metadata = self._whole["metadata"]
        name: str = metadata["name"]
        match self._whole["kind"]:
            case "Node" | "CSINode":
                return self._rename("node", name)
            case "Namespace":
                return self._rename("namespace", name)
            case "ResourceSlice":
                return self._rename("slice", name)
            case "DeviceClass":
                return self._text(name)
            case "ResourceClaim":
                return self._claim(name)
            case "PersistentVolumeClaim":
                return self._volume_claim(metadata)
        return self._object(name)

    def _claim(self, name: str) -> str:
        """A ResourceClaim of the object's namespace."""
        # A blank comes before whatever names are made of: the order is that of namespaces, then names.
        namespace = self._whole["metadata"].get("namespace", "")
        return self._rename("claim", f"{namespace} {name}").rpartition(" ")[2]

    def _volume_claim(self, metadata: JSON) -> str:
        """A PersistentVolumeClaim: one that was made for a pod has the name of the pod and of the volume."""
        for owner in metadata.get("ownerReferences", ()):
            pod, name = f"{owner['name']}-", metadata["name"]
            if owner["kind"] == "Pod" and name.startswith(pod):
                return f"{self._object(owner['name'])}-{self._object(name.removeprefix(pod))}"
        return self._object(metadata["name"])

    def _object(self, name: str) -> str:
        public = (
            name in ("", ANY_ADDRESS, _DEFAULT_SCHEDULER)
            or name.startswith("system-")
            or name.split("/")[0].endswith(_PUBLIC_DOMAINS)
        )
        return name if public else self._rename("object", name)

    def _around(self, value: Any) -> Any:
        """A value of an object of Kubernetes itself."""
        if isinstance(value, dict):
            return {name: self._field_around(name, field) for name, field in value.items()}
        return [self._around(element) for element in value] if isinstance(value, list) else value

    def _field_around(self, name: str, value: Any) -> Any:  # noqa: C901  # a match over the fields of objects
        rename = self._rename
        match name:
            case "nodeName" | "nominatedNodeName" | "volume.kubernetes.io/selected-node":
                return rename("node", value)
            case "namespace":
                return rename("namespace", value)
            case "namespaces":
                return [rename("namespace", element) for element in value]
            case "resourceClaimName":
                return value and self._claim(value)
            case "labels" | "matchLabels" | "nodeSelector":
                return {self._label_key(key): self._label_value(key, label) for key, label in value.items()}
            case "matchExpressions" | "matchFields" | "matchLabelExpressions":
                return [self._requirement(element) for element in value]
            case "topologyKey":
                return self._label_key(value)
            case "matchLabelKeys" | "mismatchLabelKeys":
                return [self._label_key(key) for key in value]
            case "topology":
                return [{**element, "key": self._label_key(element.get("key", ""))} for element in value]
            case "taints" | "tolerations":
                return [self._taint(element) for element in value]
            case "hard" | "used":
                return {key: field for key, field in value.items() if _OF_STORAGE_CLASS not in key}
            case "disruptedPods":
                return {rename("object", key): field for key, field in value.items()}
            case "monitors":
                return [rename("object", element) for element in value]
            case _ if name in _OBJECTS and isinstance(value, str):
                return self._object(value)
        return self._around(value)

    def _of_devices(self, value: Any) -> Any:
        """A value of an object of resource.k8s.io."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key: self._field_of_devices(key, field) for key, field in value.items() if key != "config"}
        return [self._of_devices(element) for element in value] if isinstance(value, list) else value

    def _field_of_devices(self, name: str, value: Any) -> Any:
        rename = self._rename
        match name:
            case "nodeName":
                return rename("node", value)
            case "pool" if isinstance(value, str):
                return rename("pool", value)
            case "pool":
                return {**value, "name": rename("pool", value["name"])}
            case "matchExpressions" | "matchFields":
                return [self._requirement(element) for element in value]
            case "attributes":
                return {key: self._attribute(key, typed) for key, typed in value.items()}
            case "expression":
                return self._text(_LITERAL.sub(lambda match: match[1] + rename("text", match[2]) + match[1], value))
            case "reservedFor":
                return self._around(value)
            case _ if name in _LEFT:
                return value
        return self._of_devices(value)

    def _text(self, text: str) -> str:
        if "-" in text:
            text = _UUID.sub(lambda found: self._rename("uuid", found[0]), text)
        if ":" in text:
            text = _PCI_ADDRESS.sub(lambda found: self._rename("pci", found[0]), text)
        return text

    def _attribute(self, name: str, typed: JSON) -> JSON:
        """`{string: …}`, or another kind of value, or a list."""
        what = "id" if name.rpartition("/")[2].lower() in _IDENTIFYING else "text"

        def change(value: Any) -> Any:
            if isinstance(value, list):
                return [change(item) for item in value]
            return self._text(self._rename(what, value)) if isinstance(value, str) else value

        return {kind: value if kind.startswith("version") else change(value) for kind, value in typed.items()}

    def _requirement(self, requirement: JSON) -> JSON:
        if "scopeName" in requirement:  # of a quota
            names = (
                {"values": [self._object(name) for name in requirement["values"]]} if "values" in requirement else {}
            )
            return {**requirement, **names}
        values = [self._label_value(requirement["key"], value) for value in requirement.get("values", ())]
        return {**requirement, "key": self._label_key(requirement["key"]), **({"values": values} if values else {})}

    def _taint(self, taint: JSON) -> JSON:
        key, value = taint.get("key", ""), taint.get("value", "")
        changed = {**taint, **({"key": self._label_key(key)} if key else {})}
        return {**changed, **({"value": self._label_value(key, value)} if value else {})}

    def _label_key(self, key: str) -> str:
        """Keys that Kubernetes does not take are kept: they are why a selector is refused."""
        domain, slash, _ = key.partition("/")
        public = key == NODE_NAME_FIELD or (slash and domain.endswith(_PUBLIC_DOMAINS))
        return key if public or not is_label_key(key) else self._rename("label", key)

    def _label_value(self, key: str, value: str) -> str:
        """Numbers are kept, which selectors compare, and values that Kubernetes does not take."""
        if key in (NODE_NAME_FIELD, _NAMESPACE):
            return self._rename("node" if key == NODE_NAME_FIELD else "namespace", value)
        public = key in _PUBLIC_LABELS or key.partition("/")[0].endswith("nvidia.com")
        if public or value in ("", "true", "false") or _INTEGER.fullmatch(value) or not is_label_value(value):
            return self._text(value)
        return _SEVERAL.join(self._rename("value", part) if part else part for part in value.split(_SEVERAL))
