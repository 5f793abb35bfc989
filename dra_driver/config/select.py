# SPDX-License-Identifier: Apache-2.0
"""Finds the configuration that applies to an allocated device.

Entries of the claim have precedence over entries of the class. In each of them, later entries have precedence over
earlier ones. Entries are never merged. An entry that names requests applies only to these, and must have the kind of
their devices. An entry without requests applies to all devices of its kind.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from ..kube.resource import AllocatedConfiguration, AllocatedDevice, ResourceClaim
from ..kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from .decode import ConfigError, decode_config, decode_domain_config
from .types import (
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    DeviceConfig,
    DomainConfig,
    IommuBackend,
    VfioDeviceConfig,
)

D = TypeVar("D", ComputeDomainChannelConfig, ComputeDomainDaemonConfig)

_SOURCES: Final = ("FromClass", "FromClaim")
"""The sources of configurations. Later sources have precedence."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The configuration of a device, and the path of its parameters (empty for the default configuration).

    A path is for example `spec.devices.config[1].opaque.parameters`. Devices with the same path are configured
    together.
    """

    config: DeviceConfig
    place: str = ""


def config_for(device: AllocatedDevice, kind: type[DeviceConfig], claim: ResourceClaim) -> Chosen:
    """The configuration of a device of a claim. `kind` is the kind for the device. Raises ConfigError."""
    for parameters, config in _entries(device, claim):
        decoded = decode_config(config.opaque.parameters, parameters, of_class=config.source == "FromClass")
        if isinstance(decoded, kind):
            return Chosen(decoded, parameters)
        if config.requests:
            raise ConfigError(f"{parameters}.kind", misfit(device.base_request, decoded, (kind,)))
    return Chosen(_default(kind, claim))


def domain_config_for(device: AllocatedDevice, kind: type[D], claim: ResourceClaim) -> D:
    """The configuration of a device of the driver compute-domain.nvidia.com. Raises ConfigError, also without an
    entry, because there is no default domain.
    """
    for parameters, config in _entries(device, claim):
        decoded = decode_domain_config(config.opaque.parameters, parameters)
        if isinstance(decoded, kind):
            return decoded
        if config.requests:
            raise ConfigError(f"{parameters}.kind", misfit(device.base_request, decoded, (kind,)))
    raise ConfigError(
        "spec.devices.config",
        f"device {device.device} of request {device.base_request!r} needs a {kind.__name__} with the domainID of a"
        " ComputeDomain: use the ResourceClaimTemplate that the ComputeDomain makes",
    )


def _entries(device: AllocatedDevice, claim: ResourceClaim) -> Iterator[tuple[str, AllocatedConfiguration]]:
    """The configurations for a device and the paths of their parameters. The one with the highest precedence comes
    first. Raises ConfigError.
    """
    for place, config in reversed(_ranked(claim)):
        named = not config.requests or device.request in config.requests or device.base_request in config.requests
        if named and config.opaque.driver == device.driver:
            yield f"{place}.opaque.parameters", config


def _default(kind: type[DeviceConfig], claim: ResourceClaim) -> DeviceConfig:
    """The configuration of a device without a matching entry.

    The scheduler's claim for extended resources has no configuration by a user. KubeVirt expects for such resources
    what NVIDIA/kubevirt-gpu-device-plugin gives: the devices of both interfaces of the kernel.
    """
    if kind is VfioDeviceConfig and claim.metadata.annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true":
        return VfioDeviceConfig(IommuBackend.PREFER_IOMMUFD, api_device=True)
    return kind()


def misfit(
    request: str, config: DeviceConfig | DomainConfig, kinds: Iterable[type[DeviceConfig] | type[DomainConfig]]
) -> str:
    """The error for a configuration that names a request for devices of other `kinds`."""
    return f"request {request!r} is not given devices that take a {type(config).__name__}: {use_other(kinds)}"


def use_other(kinds: Iterable[type[DeviceConfig] | type[DomainConfig]]) -> str:
    """The advice for a configuration of the wrong kind. `kinds` are the kinds that the devices take."""
    names = " or ".join(kind.__name__ for kind in kinds)
    return f"use a {names}, or another class" if names else "use another class"


def require_one_backend(chosen: Iterable[Chosen]) -> None:
    """Raises ConfigError if the vfio devices of a claim are configured differently.

    One virtual machine gets all of them, with one interface of the kernel for all.
    """
    found = [device for device in chosen if isinstance(device.config, VfioDeviceConfig)]
    for other in found[1:]:
        if other.config != found[0].config:
            first, second = (device.place or "the default" for device in (found[0], other))
            raise ConfigError(
                other.place or found[0].place,
                f"the claim's devices for virtual machines are configured differently, by {first} and {second}: all"
                " of them must have the same VfioDeviceConfig",
            )


def _ranked(claim: ResourceClaim) -> list[tuple[str, AllocatedConfiguration]]:
    """The configurations of the allocation and their paths. Later ones have precedence. Raises ConfigError.

    The scheduler copies entries in their order, some of them twice. The path of an entry of the claim is that in the
    spec. The path of an entry of a class is that in the allocation.
    """
    found: list[tuple[str, AllocatedConfiguration]] = []
    spec = [(entry.requests, entry.opaque) for entry in claim.spec.config]
    for index, config in enumerate(claim.allocation.config if claim.allocation is not None else ()):
        place = f"status.allocation.devices.config[{index}]"
        if config.source not in _SOURCES:
            raise ConfigError(
                f"{place}.source",
                f"this version of the driver does not know source {config.source!r} (only {' and '.join(_SOURCES)}):"
                " so its precedence over other configurations is unknown",
            )
        if config.source == "FromClaim" and (config.requests, config.opaque) in spec:
            place = f"spec.devices.config[{spec.index((config.requests, config.opaque))}]"
        found.append((place, config))
    return sorted(found, key=lambda entry: _SOURCES.index(entry[1].source))  # keeps the order inside of a source
