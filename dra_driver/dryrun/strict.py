# SPDX-License-Identifier: Apache-2.0
"""The identity of an object, which the API server keeps unique."""

from .documents import JSON

Identity = tuple[str, str, str, str]
"""The API group, kind, namespace and name of an object."""


def identity_of(value: JSON) -> Identity | None:
    """The identity of an object. None for an object that gets its name from the API server."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return None
    group = str(value["apiVersion"]).rpartition("/")[0]
    return group, str(value["kind"]), str(metadata.get("namespace") or "default"), str(metadata["name"])
