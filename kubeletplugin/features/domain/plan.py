# SPDX-License-Identifier: Apache-2.0
"""The plan of a claim for a channel or a daemon: from allocation and configuration to what the claim needs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dra_driver.config import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    ConfigError,
    DomainConfig,
    domain_config_for,
)
from dra_driver.domains.names import CHANNEL_DEVICE, DAEMON_DEVICE, DRIVER
from dra_driver.domains.objects import COMPUTE_DOMAINS
from dra_driver.kube.api import ApiClient, NotFoundError
from dra_driver.kube.resource import AllocatedDevice, ResourceClaim

from ...claims.model import ClaimRef, Device, Step
from ...claims.reader import allocated
from ...errors import PrepareError
from ...kinds.channel import ChannelKind
from ...kinds.daemon import DaemonKind
from ...kinds.domain import DomainKind, DomainName
from .steps import DaemonFolderStep, DaemonReadyStep, MembershipStep

_CHANNEL: Final = re.compile(rf"{CHANNEL_DEVICE}(-[0-9]+)?")
"""The channel, or an alias of it where the API server does not let several claims have one device."""
_LONGEST_SHOWN: Final = 100
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")

_ADVICE: Final = (
    "it was deleted, or is in another namespace; claim channels with the ResourceClaimTemplate that the ComputeDomain"
    " makes in its own namespace"
)

FindDomain = Callable[[str, str], DomainName]
"""Finds the ComputeDomain with a UID in a namespace, or in all of them if that is empty. Raises ApiError or
PrepareError.
"""


@dataclass(frozen=True, slots=True)
class DomainRequest:
    """What a claim asks for: channels, or a daemon, of the ComputeDomain with the UID `domain`. `results` are the
    allocated devices.
    """

    domain: str
    results: tuple[AllocatedDevice, ...]
    is_daemon: bool = False
    all_channels: bool = False


@dataclass(frozen=True, slots=True)
class DomainFacts:
    """What a plan depends on beside the claim: the ComputeDomain, the clique of the node (empty outside of a fabric),
    the namespace of the driver's own objects, and whether the IMEX daemon is the node's own.
    """

    domain: DomainName
    clique: str
    namespace: str
    host_managed: bool


def requested(ref: ClaimRef, claim: ResourceClaim, pool: str) -> DomainRequest:
    """What an allocated claim asks the node with this pool for. Raises PrepareError."""
    results = allocated(ref, claim, DRIVER)
    if not results:
        raise PrepareError(f"ResourceClaim {ref} has no device of driver {DRIVER}")
    try:
        configs = [_config(result, claim, pool) for result in results]
    except ConfigError as error:
        raise PrepareError(str(error)) from None
    if len({(type(config), config.domain) for config in configs}) > 1:
        raise PrepareError(
            f"ResourceClaim {ref} has devices of several ComputeDomains, or a daemon and channels: use several claims"
        )
    domain = configs[0].domain
    if not _UID.fullmatch(domain):
        raise PrepareError(f"domainID {domain[:_LONGEST_SHOWN]!r} is not the UID of a ComputeDomain")
    is_daemon = isinstance(configs[0], ComputeDomainDaemonConfig)
    all_channels = any(isinstance(config, ComputeDomainChannelConfig) and config.all_channels for config in configs)
    return DomainRequest(domain, tuple(results), is_daemon, all_channels)


def _config(result: AllocatedDevice, claim: ResourceClaim, pool: str) -> DomainConfig:
    """The configuration of a device. Raises ConfigError or PrepareError."""
    if result.pool != pool:
        raise PrepareError(f"device {result.device} is in pool {result.pool}, which is not on this node ({pool})")
    if result.device == DAEMON_DEVICE:
        return domain_config_for(result, ComputeDomainDaemonConfig, claim)
    if _CHANNEL.fullmatch(result.device):
        return domain_config_for(result, ComputeDomainChannelConfig, claim)
    raise PrepareError(f"there is no device {result.device} on node {pool}")


def require_allowed(ref: ClaimRef, request: DomainRequest, namespace: str, *, host_managed: bool) -> None:
    """Raises PrepareError if the claim must not have what it asks for. A daemon can manage all channels of its node, so
    only claims in the driver's `namespace` get it, and never a user's.
    """
    if not request.is_daemon:
        if request.all_channels and host_managed:
            raise PrepareError(
                "allocationMode All is not available with --imex-mode=hostManaged, because all domains share the"
                " channels of the node: use Single"
            )
        return
    if host_managed:
        raise PrepareError(
            "with --imex-mode=hostManaged, the node has an IMEX daemon of its own, and no claim gets another one"
        )
    if not namespace or ref.namespace != namespace:
        raise PrepareError(
            f"only claims in the namespace of the driver ({namespace or '--namespace is not set'}) can have a"
            f" daemon of a ComputeDomain, and {ref} is not: use a channel"
        )


def find_domain(client: ApiClient, uid: str, namespace: str) -> DomainName:
    """See FindDomain."""
    try:
        found = client.list(COMPUTE_DOMAINS, namespace=namespace, metadata_only=True).items
    except NotFoundError:
        raise PrepareError(
            "the API server has no ComputeDomains: install the CustomResourceDefinitions of the driver's chart"
        ) from None
    metas = (item.get("metadata") or {} for item in found)
    domain = next((meta for meta in metas if meta.get("uid") == uid), None)
    if domain is None:
        place = f"in namespace {namespace}" if namespace else "in the cluster"
        advice = _ADVICE if namespace else "it was deleted, and its daemons end"
        raise PrepareError(f"there is no ComputeDomain with UID {uid} {place}: {advice}")
    return DomainName(uid, str(domain["namespace"]), str(domain["name"]))


def unknown_domain(uid: str, namespace: str) -> DomainName:
    """See FindDomain, for those who plan no claims."""
    raise PrepareError(f"there is no ComputeDomain with UID {uid}")


def devices_and_steps(request: DomainRequest, facts: DomainFacts) -> tuple[tuple[Device, ...], list[Step]]:
    """What the claim needs on the node."""
    kind: DomainKind
    if request.is_daemon:
        kind = DaemonKind(facts.domain, facts.clique)
    else:
        kind = ChannelKind(facts.domain, facts.clique, request.all_channels)
    devices = tuple(
        Device(result.device, result.base_request, kind, share_id=result.share_id) for result in request.results
    )
    return devices, domain_steps(kind, facts.namespace, host_managed=facts.host_managed)


def domain_steps(kind: DomainKind, namespace: str, *, host_managed: bool) -> list[Step]:
    """The steps of a claim with such devices. A channel makes its node a member of the domain, and waits for the
    daemon, unless the daemon is the node's own.
    """
    if isinstance(kind, DaemonKind):
        return [DaemonFolderStep(kind.domain)]
    if kind.clique and not host_managed:
        return [MembershipStep(kind.domain), DaemonReadyStep(kind.domain, namespace)]
    return []
