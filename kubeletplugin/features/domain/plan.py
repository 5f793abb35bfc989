# SPDX-License-Identifier: Apache-2.0
"""The plan of a claim for a channel or a daemon: from allocation and configuration to what the claim needs."""

import re
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.config import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    ConfigError,
    DomainConfig,
    domain_config_for,
)
from dra_driver.domains.names import CHANNEL_DEVICE, CHANNEL_TYPE, DAEMON_DEVICE, DAEMON_TYPE, DRIVER
from dra_driver.domains.objects import COMPUTE_DOMAINS
from dra_driver.kube.api import ApiClient, NotFoundError
from dra_driver.kube.resource import AllocatedDevice, ResourceClaim

from ...claims.model import ClaimRef
from ...claims.reader import FetchClaim, allocated
from ...errors import PrepareError

_CHANNEL: Final = re.compile(rf"{CHANNEL_DEVICE}(-[0-9]+)?")
"""The channel, or an alias of it where the API server does not let several claims have one device."""
_LONGEST_SHOWN: Final = 100
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")

_ADVICE: Final = (
    "it was deleted, or is in another namespace; claim channels with the ResourceClaimTemplate that the ComputeDomain"
    " makes in its own namespace"
)


@dataclass(frozen=True, slots=True)
class DomainDevice:
    """An allocated device, once for each result of the allocation."""

    name: str
    request: str
    share_id: str | None = None

    @property
    def cdi_name(self) -> str:
        """The name of the CDI device in the claim's spec. A claim may have several shares of one device."""
        return self.name if self.share_id is None else f"{self.name}-{self.share_id}"


@dataclass(frozen=True, slots=True)
class DomainPlan:
    """What a claim needs on this node. All of its devices are of the ComputeDomain with the UID `domain`, which is
    `domain_namespace`/`domain_name`.

    `clique` is that of the node, and empty outside of a fabric. With `host_managed`, the IMEX daemon is the node's own.
    """

    claim: ClaimRef
    pool: str
    domain: str
    devices: tuple[DomainDevice, ...]
    is_daemon: bool = False
    all_channels: bool = False
    domain_namespace: str = ""
    domain_name: str = ""
    clique: str = ""
    host_managed: bool = False

    @property
    def device_type(self) -> str:
        """The attribute `type` of its devices."""
        return DAEMON_TYPE if self.is_daemon else CHANNEL_TYPE

    @property
    def joins(self) -> bool:
        """Whether the claim makes its node a member of the domain. A node can be in one domain at a time."""
        return bool(self.clique) and not self.is_daemon and not self.host_managed

    @property
    def domain_text(self) -> str:
        """The domain in messages."""
        return f"ComputeDomain {self.domain_namespace}/{self.domain_name}"


def plan_claim(ref: ClaimRef, claim: ResourceClaim, pool: str) -> DomainPlan:
    """The plan of an allocated claim, without the name of the domain and the node's clique. Raises PrepareError."""
    results = allocated(ref, claim, DRIVER)
    if not results:
        raise PrepareError(f"ResourceClaim {ref} has no device of driver {DRIVER}")
    try:
        configs = [_config(result, claim, pool) for result in results]
    except ConfigError as error:
        raise PrepareError(str(error)) from None
    if len({(type(one), one.domain) for one in configs}) > 1:
        raise PrepareError(
            f"ResourceClaim {ref} has devices of several ComputeDomains, or a daemon and channels: use several claims"
        )
    config = configs[0]
    if not _UID.fullmatch(config.domain):
        raise PrepareError(f"domainID {config.domain[:_LONGEST_SHOWN]!r} is not the UID of a ComputeDomain")
    devices = tuple(DomainDevice(one.device, one.base_request, one.share_id) for one in results)
    is_daemon = isinstance(config, ComputeDomainDaemonConfig)
    all_channels = any(isinstance(one, ComputeDomainChannelConfig) and one.all_channels for one in configs)
    return DomainPlan(ref, pool, config.domain, devices, is_daemon, all_channels)


def _config(result: AllocatedDevice, claim: ResourceClaim, pool: str) -> DomainConfig:
    """The configuration of a device. Raises ConfigError or PrepareError."""
    if result.pool != pool:
        raise PrepareError(f"device {result.device} is in pool {result.pool}, which is not on this node ({pool})")
    if result.device == DAEMON_DEVICE:
        return domain_config_for(result, ComputeDomainDaemonConfig, claim)
    if _CHANNEL.fullmatch(result.device):
        return domain_config_for(result, ComputeDomainChannelConfig, claim)
    raise PrepareError(f"there is no device {result.device} on node {pool}")


class DomainPlanner:
    """Plans claims for the node's `pool`, and finds their domains in the API server.

    `namespace` is the one that the driver's own objects are in. With `host_managed`, the nodes' IMEX daemons are the
    administrator's.
    """

    def __init__(self, pool: str, fetch: FetchClaim, client: ApiClient, namespace: str, *, host_managed: bool) -> None:
        self.fetch = fetch
        self._pool = pool
        self._client = client
        self._namespace = namespace
        self._host_managed = host_managed

    def plan(self, ref: ClaimRef) -> DomainPlan:
        """The plan of the claim, without the node's clique. Raises ApiError or PrepareError."""
        plan = replace(plan_claim(ref, self.fetch(ref), self._pool), host_managed=self._host_managed)
        if plan.is_daemon:
            self._require_own(plan)
        elif plan.all_channels and self._host_managed:
            raise PrepareError(
                "allocationMode All is not available with --imex-mode=hostManaged, because all domains share the"
                " channels of the node: use Single"
            )
        namespace, name = self._find(plan)
        return replace(plan, domain_namespace=namespace, domain_name=name)

    def _require_own(self, plan: DomainPlan) -> None:
        """Raises PrepareError if the claim of a daemon was not made by the driver. A daemon can manage all channels of
        its node, so a user's claim must never get it.
        """
        if self._host_managed:
            raise PrepareError(
                "with --imex-mode=hostManaged, the node has an IMEX daemon of its own, and no claim gets another one"
            )
        if not self._namespace or plan.claim.namespace != self._namespace:
            raise PrepareError(
                f"only claims in the namespace of the driver ({self._namespace or '--namespace is not set'}) can have a"
                f" daemon of a ComputeDomain, and {plan.claim} is not: use a channel"
            )

    def _find(self, plan: DomainPlan) -> tuple[str, str]:
        """The namespace and name of the plan's domain. The domain of a channel must be in the claim's namespace. Raises
        ApiError or PrepareError.
        """
        namespace = "" if plan.is_daemon else plan.claim.namespace
        try:
            found = self._client.list(COMPUTE_DOMAINS, namespace=namespace, metadata_only=True).items
        except NotFoundError:
            raise PrepareError(
                "the API server has no ComputeDomains: install the CustomResourceDefinitions of the driver's chart"
            ) from None
        metas = (one.get("metadata") or {} for one in found)
        domain = next((meta for meta in metas if meta.get("uid") == plan.domain), None)
        if domain is None:
            place = f"in namespace {namespace}" if namespace else "in the cluster"
            advice = "it was deleted, and its daemons end" if plan.is_daemon else _ADVICE
            raise PrepareError(f"there is no ComputeDomain with UID {plan.domain} {place}: {advice}")
        return str(domain["namespace"]), str(domain["name"])
