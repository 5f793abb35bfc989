# SPDX-License-Identifier: Apache-2.0
"""Whether the driver would prepare allocated claims: their configurations, and the ComputeDomains of their nodes."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from ..config import (
    DEVICE_TYPES,
    Chosen,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    ConfigError,
    DeviceConfig,
    config_for,
    domain_config_for,
    require_one_backend,
)
from ..domains.names import DAEMON_CLASS, DAEMON_DEVICE
from ..domains.names import DRIVER as DOMAIN_DRIVER
from ..kube.resource import AllocatedDevice, ResourceClaim
from ..names import DRIVER_NAME
from ..scheduler.allocator import Cluster
from .verdict import placed_devices

_KINDS: Final[dict[object, type[DeviceConfig]]] = {form: kind for kind, forms in DEVICE_TYPES.items() for form in forms}


def refused_configs(claims: Iterable[ResourceClaim], cluster: Cluster) -> tuple[str, ...]:
    """Why the driver would not prepare the allocated claims, each reason once. Other drivers are not judged."""
    return tuple(dict.fromkeys(problem for claim in claims for problem in _problems(claim, cluster)))


def _problems(claim: ResourceClaim, cluster: Cluster) -> Iterator[str]:  # noqa: C901  # one check after the other
    allocation = claim.allocation
    if allocation is None:
        return
    refused = f"claim {claim.metadata}: the driver refuses it on the node"
    configured = {configuration.opaque.driver for configuration in allocation.config}
    chosen: list[Chosen] = []
    for result, placed in zip(allocation.results, placed_devices([claim], cluster), strict=True):
        if result.driver not in configured or result.admin_access:
            continue
        kind = _KINDS.get(placed.device.attributes.get("type")) if placed.device is not None else None
        try:
            if result.driver == DOMAIN_DRIVER:
                domain = _domain_of(result, claim)
                if result.device == DAEMON_DEVICE:
                    holders = (holder for holder, _ in _holders(result, cluster))
                    others = (holder for holder in holders if holder.metadata != claim.metadata)
                    if daemon := next(others, None):
                        yield f"{refused}: claim {daemon.metadata} has the IMEX daemon of node {result.pool}"
                elif other := _of_other_domain(result, domain, cluster):
                    problem = f"claim {other.metadata} of another ComputeDomain has the channel of node {result.pool}"
                    yield f"{refused}: {problem}, and a node is in one at a time"
            elif result.driver == DRIVER_NAME and kind is not None:
                chosen.append(config_for(result, kind, claim))
        except ConfigError as error:
            yield f"{refused}: {error}"
    try:
        require_one_backend(chosen)
    except ConfigError as error:
        yield f"{refused}: {error}"


def _domain_of(result: AllocatedDevice, claim: ResourceClaim) -> str:
    """The UID of the domain of a channel or daemon. Raises ConfigError."""
    if result.device == DAEMON_DEVICE:
        return domain_config_for(result, ComputeDomainDaemonConfig, claim).domain
    return domain_config_for(result, ComputeDomainChannelConfig, claim).domain


def _of_other_domain(result: AllocatedDevice, domain: str, cluster: Cluster) -> ResourceClaim | None:
    """A claim that has the channel of the same node for another domain. The scheduler learns that only when the driver
    has prepared the claim. Where IMEX daemons belong to the hosts (there is no class for them), domains share nodes.
    """
    if all(class_.metadata.name != DAEMON_CLASS for class_ in cluster.classes):
        return None
    for claim, allocated in _holders(result, cluster):
        with suppress(ConfigError):
            if _domain_of(allocated, claim) != domain:
                return claim
    return None


def _holders(result: AllocatedDevice, cluster: Cluster) -> Iterator[tuple[ResourceClaim, AllocatedDevice]]:
    """The allocated claims that have the same device."""
    for claim in cluster.allocated:
        for allocated in claim.allocation.results if claim.allocation is not None else ():
            if (allocated.driver, allocated.pool, allocated.device) == (result.driver, result.pool, result.device):
                yield claim, allocated
