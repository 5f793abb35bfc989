# SPDX-License-Identifier: Apache-2.0
"""Clusters without devices: the driver that publishes none, and the feature gate or release that explains it."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..domains.names import CHANNEL_CLASS
from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..kube.resource import DeviceClass, ResourceClaim, ResourceSlice
from ..kube.resource.codec import Decoded
from ..names import DRIVER_NAME
from .release import Rules, ServerRelease

_DRIVER: Final = re.compile(r"""device\.driver\s*==\s*(["'])([^"']+)\1""")
_MIG: Final = re.compile(r"""\.type\s*==\s*(["'])mig\1""")
_PARTITIONS: Final = "DRAPartitionableDevices"
_VALUE: Final = "resources.computeDomains.enabled"


def release_notes(objects: Sequence[Decoded], server: ServerRelease | None) -> Iterator[str]:
    """A note if there are no devices at all. `server` is None if no cluster was asked."""
    slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
    if server is not None and not slices:
        yield "the cluster has no ResourceSlice of any driver: no DRA driver publishes devices there"
    elif slices and not any(slice_.devices for slice_ in slices):
        drivers = ", ".join(sorted({slice_.driver for slice_ in slices}))
        yield f"there are no devices: the ResourceSlices of {drivers} are empty (the log of the driver says why)"


def missing_classes(claims: Iterable[ResourceClaim], objects: Sequence[Decoded]) -> Iterator[str]:
    """A text for each DeviceClass that the claims name and that does not exist, with the class that may be meant."""
    known = [object_.metadata.name for object_ in objects if isinstance(object_, DeviceClass)]
    for claim in claims:
        for request, required in claim.spec.requirements:
            name = required.device_class_name
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f" (there is {', '.join(known) or 'none'})"
                yield f"request {request}: there is no DeviceClass {name!r}{hint}"


def missing_devices(
    claims: Iterable[ResourceClaim], objects: Sequence[Decoded], server: ServerRelease | None
) -> Iterator[str]:
    """A note for each driver and kind of device that the claims' DeviceClasses select and no slice has."""
    classes = {object_.metadata.name: object_ for object_ in objects if isinstance(object_, DeviceClass)}
    slices = [object_ for object_ in objects if isinstance(object_, ResourceSlice)]
    drivers = {slice_.driver for slice_ in slices}
    names = dict.fromkeys(required.device_class_name for claim in claims for _, required in claim.spec.requirements)
    if CHANNEL_CLASS in names and CHANNEL_CLASS not in classes:
        yield f"there is no DeviceClass {CHANNEL_CLASS}: the driver's chart installs it with {_VALUE}=true"
    for class_ in filter(None, map(classes.get, names)):
        text = " && ".join(class_.selectors)
        selected = _DRIVER.search(text)
        if not slices or selected is None:
            continue
        driver = selected[2]
        if driver not in drivers:
            there = ", ".join(sorted(drivers))
            wanted = f"driver {driver}, which DeviceClass {class_.metadata.name} selects"
            why = f": no node has IMEX channels, or {_VALUE} is false" if driver == DOMAIN_DRIVER else ""
            yield f"there is no ResourceSlice of {wanted} (there are slices of {there}){why}"
        elif driver == DOMAIN_DRIVER and not any(slice_.devices for slice_ in slices if slice_.driver == driver):
            yield f"the slices of driver {driver} have no devices: no node has IMEX channels"
        elif driver == DRIVER_NAME and _MIG.search(text) and not _has_mig(slices):
            yield f"no MIG device is published{_why(server)}"


def _has_mig(slices: Iterable[ResourceSlice]) -> bool:
    return any(
        device.attributes.get("type") == "mig"
        for slice_ in slices
        if slice_.driver == DRIVER_NAME
        for device in slice_.devices
    )


def _why(server: ServerRelease | None) -> str:
    if server is None or not server.release:
        return f": that takes MIG mode and, up to Kubernetes 1.35, the feature gate {_PARTITIONS}"
    if Rules().features(server).partitionable_devices:
        return ": no GPU of the cluster is in MIG mode"
    return f": Kubernetes {server.release} without {_PARTITIONS}: MIG placements are not published"
