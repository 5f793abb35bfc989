# SPDX-License-Identifier: Apache-2.0
"""Words that a shell completes for `dra-dryrun drain`: nodes, their GPUs, models, and health findings."""

from collections.abc import Iterable, Iterator

import click

from ...gpu.health.meanings import MEANINGS, XID
from ...kube.resource import ResourceSlice
from ..completion import complete_values, published_slices
from .targets import ANY_FINDING


def _targets(context: click.Context) -> Iterator[str]:
    for slice_ in published_slices(context):
        for device in slice_.devices:
            yield from _words(slice_, device.name)
            product = device.attributes.get("productName")
            if isinstance(product, str):
                yield product


def _words(slice_: ResourceSlice, name: str) -> Iterator[str]:
    if slice_.node_name:
        yield slice_.node_name
        yield f"{slice_.node_name}/{name}"


def _reasons(_context: click.Context) -> Iterable[str]:
    return (ANY_FINDING, *(key.rpartition("/")[2] for key in (XID, *(key for key, _ in MEANINGS))))


complete_target = complete_values(_targets)
"""Completes NODE, NODE/DEVICE or MODEL."""
complete_health = complete_values(_reasons)
"""Completes a health finding."""
