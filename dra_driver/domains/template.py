# SPDX-License-Identifier: Apache-2.0
"""The claims of a ComputeDomain: what the ResourceClaimTemplates for its workload and for its daemons ask for."""

from ..config import API_VERSION, ComputeDomainChannelConfig, ComputeDomainDaemonConfig, DomainConfig
from ..kube.resource import DeviceClaim, DeviceRequest
from ..kube.resource.claim import ClaimConfiguration, DeviceRequirements, OpaqueConfiguration
from .names import CHANNEL_CLASS, CHANNEL_TYPE, DAEMON_CLASS, DAEMON_TYPE, DRIVER


def channel_claim(domain_uid: str, *, all_channels: bool) -> DeviceClaim:
    """What a pod of the workload claims: one channel, or access to all channels of the node."""
    mode = "All" if all_channels else "Single"
    requirements = DeviceRequirements(CHANNEL_CLASS, selectors=(domain_selector(domain_uid),))
    return _claim(CHANNEL_TYPE, requirements, ComputeDomainChannelConfig, domainID=domain_uid, allocationMode=mode)


def domain_selector(domain_uid: str) -> str:
    """The selector of `channel_claim`.

    A node can be in one domain at a time. While it is, its channel has the attribute `domain`, and the selector keeps
    the pods of other domains away from it.
    """
    attributes = f"device.attributes['{DRIVER}']"
    return f"!('domain' in {attributes}) || {attributes}.domain == '{domain_uid}'"


def is_domain_selector(expression: str) -> bool:
    """Whether an expression is the selector of `channel_claim` for some domain."""
    return expression == domain_selector(expression.removesuffix("'").rpartition("'")[2])


def daemon_claim(domain_uid: str) -> DeviceClaim:
    """What a daemon of the domain claims."""
    return _claim(DAEMON_TYPE, DeviceRequirements(DAEMON_CLASS), ComputeDomainDaemonConfig, domainID=domain_uid)


def _claim(request: str, requirements: DeviceRequirements, kind: type[DomainConfig], **fields: str) -> DeviceClaim:
    parameters = {"apiVersion": API_VERSION, "kind": kind.__name__, **fields}
    configuration = ClaimConfiguration((request,), OpaqueConfiguration(DRIVER, parameters))
    return DeviceClaim(requests=(DeviceRequest(request, exactly=requirements),), config=(configuration,))
