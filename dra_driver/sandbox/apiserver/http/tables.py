# SPDX-License-Identifier: Apache-2.0
"""Objects as rows of a Table, and objects as their metadata only."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from ..groups.columns import NAME_AND_AGE
from ..kinds import Served
from ..objects import Object
from .negotiation import Media


def column_definitions(served: Served) -> list[Object]:
    """What the columns of a kind are."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in served.columns or NAME_AND_AGE
    ]


def row(served: Served, obj: Object, now: datetime, include: str, version: str) -> Object:
    """The row of one object; `include` is the includeObject parameter."""
    cells = [column.cell(obj, now) for column in served.columns or NAME_AND_AGE]
    result: Object = {"cells": cells}
    if include == "None":
        result["object"] = None
    elif include == "Object":
        converted = served.kind.from_stored(obj, served.version)
        result["object"] = {"kind": served.kind.name, "apiVersion": served.api_version, **converted}
    else:
        result["object"] = partial(obj, version)
    return result


def table(
    served: Served,
    objects: Iterable[Object],
    meta: Object,
    media: Media,
    now: datetime,
    include: str,
    *,
    headed: bool = True,
) -> Object:
    """A Table; without a head the columns are those of an earlier one (in a watch)."""
    rows = [row(served, obj, now, include, media.version) for obj in objects]
    definitions: Any = column_definitions(served) if headed else None
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{media.version}",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def partial(obj: Object, version: str) -> Object:
    """An object's metadata only."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }
