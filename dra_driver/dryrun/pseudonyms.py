# SPDX-License-Identifier: Apache-2.0
"""A snapshot without its names, on which decisions are the same.

The scheduler goes through pools and slices by name, so pseudonyms are numbered in the order of the names. What is
compared gets one pseudonym wherever it is: a UUID in an attribute and in the expression that asks for it. The objects
are gone through twice in the same way, to collect names and to replace them. Only an expression that takes such a name
apart may decide otherwise than before.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..allocation.nodes import NODE_NAME_FIELD
from ..resource.names import is_label_key, is_label_value

JSON = dict[str, Any]

Rename = Callable[[str, str], str]
"""(what it is the name of, the name) -> the name to use."""

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PCI_ADDRESS: Final = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
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
_LEFT: Final = frozenset({"counters", "capacity", "consumedCapacity"})
"""Maps whose keys are a driver's own words."""


def anonymise(documents: Sequence[JSON]) -> list[JSON]:
    """The objects of a snapshot under other names, without configurations. Done twice, it changes nothing more."""
    return _anonymised(_anonymised(documents, _names), _parts_of_names)


def _anonymised(
    documents: Iterable[JSON], pseudonyms: Callable[[Mapping[str, set[str]]], Mapping[str, Mapping[str, str]]]
) -> list[JSON]:
    found: dict[str, set[str]] = defaultdict(set)

    def collect(what: str, name: str) -> str:
        found[what].add(name)
        return name

    documents = [_renamed(one, collect) for one in documents]
    tables = pseudonyms(found)
    return [_renamed(one, lambda what, name: tables.get(what, {}).get(name, name)) for one in documents]


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
        **{what: _numbered(what + "-{}", found[what]) for what in ("slice", "namespace", "claim", "label")},
    }


def _parts_of_names(found: Mapping[str, set[str]]) -> Mapping[str, Mapping[str, str]]:
    """What is replaced within texts, and keeps its form."""
    addresses = {text: f"{number >> 8:04x}:{number & 255:02x}:00.0" for number, text in enumerate(sorted(found["pci"]))}
    uuids = {text: f"00000000-0000-0000-0000-{number:012x}" for number, text in enumerate(sorted(found["uuid"]))}
    return {"pci": addresses, "uuid": uuids}


def _numbered(form: str, names: Iterable[str]) -> dict[str, str]:
    """Pseudonyms in the order of the names, which numbers of one length keep."""
    ordered = sorted(names)
    width = len(str(len(ordered)))
    return {name: form.format(f"{number:0{width}}") for number, name in enumerate(ordered, start=1)}


def _renamed(one: JSON, rename: Rename) -> JSON:
    """A document of a snapshot."""
    walk = partial(_walked, rename=rename)
    metadata = dict(one["metadata"])
    match one["kind"]:
        case "Node":
            metadata["name"] = rename("node", metadata["name"])
            labels = metadata.get("labels", {})
            renamed = {_label_key(key, rename): _label_value(key, value, rename) for key, value in labels.items()}
            return {**one, "metadata": {**metadata, **({"labels": renamed} if labels else {})}}
        case "ResourceSlice":
            metadata["name"] = rename("slice", metadata["name"])
        case "ResourceClaim":
            namespace = metadata.get("namespace", "")
            # A blank comes before whatever names are made of: the order is that of namespaces, then names.
            metadata["name"] = rename("claim", f"{namespace} {metadata['name']}").rpartition(" ")[2]
            if namespace:
                metadata["namespace"] = rename("namespace", namespace)
        case _:
            metadata["name"] = walk(metadata["name"])
    return {**one, "metadata": metadata, **{key: walk(one[key]) for key in ("spec", "status") if key in one}}


def _walked(value: Any, rename: Rename) -> Any:
    """A value somewhere in a spec or status."""
    if isinstance(value, str):
        return _text(value, rename)
    if isinstance(value, list):
        return [_walked(item, rename) for item in value]
    if isinstance(value, dict):
        return {key: _field(key, item, rename) for key, item in value.items() if key != "config"}
    return value


def _field(key: str, value: Any, rename: Rename) -> Any:
    match key:
        case "nodeName":
            return rename("node", value)
        case "pool":
            return rename("pool", value) if isinstance(value, str) else {**value, "name": rename("pool", value["name"])}
        case "nodeSelector":
            return {"nodeSelectorTerms": [_term(term, rename) for term in value["nodeSelectorTerms"]]}
        case "attributes":
            return {name: _attribute(name, typed, rename) for name, typed in value.items()}
        case "expression":
            return _expression(value, rename)
        case _ if key in _LEFT:
            return value
    return _walked(value, rename)


def _text(text: str, rename: Rename) -> str:
    text = _UUID.sub(lambda found: rename("uuid", found[0]), text)
    return _PCI_ADDRESS.sub(lambda found: rename("pci", found[0]), text)


def _expression(text: str, rename: Rename) -> str:
    return _text(_LITERAL.sub(lambda found: found[1] + rename("text", found[2]) + found[1], text), rename)


def _attribute(name: str, typed: JSON, rename: Rename) -> JSON:
    """`{string: …}`, or another kind of value, or a list."""
    what = "id" if name.rpartition("/")[2].lower() in _IDENTIFYING else "text"

    def change(value: Any) -> Any:
        if isinstance(value, list):
            return [change(item) for item in value]
        return _text(rename(what, value), rename) if isinstance(value, str) else value

    return {kind: value if kind.startswith("version") else change(value) for kind, value in typed.items()}


def _term(term: JSON, rename: Rename) -> JSON:
    return {field: [_requirement(one, rename) for one in requirements] for field, requirements in term.items()}


def _requirement(one: JSON, rename: Rename) -> JSON:
    key, values = one["key"], one.get("values", [])
    if key == NODE_NAME_FIELD:
        changed = [rename("node", value) for value in values]
    else:
        changed = [_label_value(key, value, rename) for value in values]
    return {**one, "key": _label_key(key, rename), **({"values": changed} if values else {})}


def _label_key(key: str, rename: Rename) -> str:
    """Keys that Kubernetes does not take are kept: they are why a selector is refused."""
    return key if _domain_is_public(key) or not is_label_key(key) else rename("label", key)


def _label_value(key: str, value: str, rename: Rename) -> str:
    """Numbers are kept, which selectors compare, and values that Kubernetes does not take."""
    public = key in _PUBLIC_LABELS or key.partition("/")[0].endswith("nvidia.com")
    if public or value in ("", "true", "false") or _INTEGER.fullmatch(value) or not is_label_value(value):
        return _text(value, rename)
    return rename("value", value)


def _domain_is_public(key: str) -> bool:
    domain, slash, _ = key.partition("/")
    return key == NODE_NAME_FIELD or (bool(slash) and domain.endswith(_PUBLIC_DOMAINS))
