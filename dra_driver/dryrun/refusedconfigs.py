# SPDX-License-Identifier: Apache-2.0
"""Configurations because of which a pod would get its devices and then not start: the driver refuses them."""

from collections.abc import Iterable, Iterator
from typing import Final

from .. import DRIVER_NAME
from ..allocation import Cluster
from ..config import DEVICE_TYPES, ConfigError, DeviceConfig, config_for
from ..resource import ResourceClaim
from .verdict import placed_devices

_KINDS: Final[dict[object, type[DeviceConfig]]] = {form: kind for kind, form in DEVICE_TYPES.items()}


def refused_configs(claims: Iterable[ResourceClaim], cluster: Cluster) -> tuple[str, ...]:
    """Why the driver would not prepare the allocated claims, each reason once. Other drivers are not judged."""
    return tuple(dict.fromkeys(problem for claim in claims for problem in _problems(claim, cluster)))


def _problems(claim: ResourceClaim, cluster: Cluster) -> Iterator[str]:
    allocation = claim.allocation
    if allocation is None or all(one.opaque.driver != DRIVER_NAME for one in allocation.config):
        return
    for result, placed in zip(allocation.results, placed_devices([claim], cluster), strict=True):
        kind = _KINDS.get(placed.device.attributes.get("type")) if placed.device is not None else None
        if result.driver != DRIVER_NAME or result.admin_access or kind is None:
            continue
        try:
            config_for(result, kind, claim)
        except ConfigError as error:
            yield f"claim {claim.metadata}: the driver refuses it on the node: {error}"
