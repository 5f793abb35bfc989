# SPDX-License-Identifier: Apache-2.0
"""`metadata.managedFields`: which client owns which fields of an object.

A manager is known by its name, what it did (Apply or Update), the subresource and, for updates,
the API version; each has a set of field paths and the time of its last change.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..objects import Object
from .paths import Path, Paths, from_fields_v1, to_fields_v1

APPLY: Final = "Apply"
UPDATE: Final = "Update"

# What is never owned by anyone.
_UNOWNED: Final[frozenset[Path]] = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
            )
        ),
    }
)


@dataclass(frozen=True, slots=True, order=True)
class ManagerId:
    """Who: `api_version` is empty for an applier, who is the same in every version."""

    name: str
    operation: str
    api_version: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == UPDATE else text


@dataclass(frozen=True, slots=True)
class Owned:
    """What: the fields, the API version that they are named in, and when they last changed."""

    paths: frozenset[Path]
    api_version: str
    time: str = ""


Managers = dict[ManagerId, Owned]


def decode(entries: Iterable[Any]) -> Managers:
    """The managers of an object's managedFields; empty when the field is malformed."""
    managers: Managers = {}
    for entry in entries:
        operation = entry.get("operation")
        api_version = entry.get("apiVersion", "")
        if operation not in (APPLY, UPDATE) or not api_version or entry.get("fieldsType") != "FieldsV1":
            return {}
        who = ManagerId(
            entry.get("manager", ""),
            operation,
            "" if operation == APPLY else api_version,
            entry.get("subresource", ""),
        )
        paths = frozenset(from_fields_v1(entry.get("fieldsV1") or {}))
        managers[who] = Owned(paths, api_version, entry.get("time", ""))
    return managers


def encode(managers: Managers) -> list[Object]:
    """The managedFields of an object, in the order in which the API server lists them."""
    entries = []
    for who, owned in managers.items():
        entry: Object = {"manager": who.name, "operation": who.operation, "apiVersion": owned.api_version}
        if owned.time:
            entry["time"] = owned.time
        entry["fieldsType"] = "FieldsV1"
        entry["fieldsV1"] = to_fields_v1(owned.paths)
        if who.subresource:
            entry["subresource"] = who.subresource
        entries.append(entry)
    entries.sort(
        key=lambda entry: (
            entry["operation"],
            entry.get("time", ""),
            entry["manager"],
            entry["apiVersion"],
            entry.get("subresource", ""),
        )
    )
    return entries


def stripped(paths: Paths) -> frozenset[Path]:
    """The paths that can be owned."""
    return frozenset(paths - _UNOWNED)
