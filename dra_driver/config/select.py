# SPDX-License-Identifier: Apache-2.0
"""Finds the configuration that applies to an allocated device.

Entries of the claim have precedence over entries of the class. In each of them, later entries have precedence over
earlier ones. Entries are never merged. An entry that names requests applies only to these, and must have the kind of
their devices. An entry without requests applies to all devices of its kind.
"""

from dataclasses import dataclass
from typing import Final

from ..resource import AllocatedConfiguration, AllocatedDevice, ResourceClaim
from .decode import ConfigError, decode_config
from .types import DeviceConfig, GpuConfig, MigDeviceConfig

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
    for place, config in reversed(_ranked(claim)):
        if config.opaque.driver != device.driver:
            continue
        named = bool(config.requests)
        if named and device.request not in config.requests and device.base_request not in config.requests:
            continue
        parameters = f"{place}.opaque.parameters"
        decoded = decode_config(config.opaque.parameters, parameters)
        if isinstance(decoded, kind):
            return Chosen(decoded, parameters)
        if named:
            raise ConfigError(f"{parameters}.kind", misfit(device.base_request, decoded))
    return Chosen(kind())


def misfit(request: str, config: DeviceConfig) -> str:
    """The error for a configuration that names a request for devices of the other kind."""
    return f"request {request!r} is not given devices that take a {type(config).__name__}: {use_other(config)}"


def use_other(config: DeviceConfig) -> str:
    """The advice for a configuration of the wrong kind."""
    other = GpuConfig if isinstance(config, MigDeviceConfig) else MigDeviceConfig
    return f"use a {other.__name__}, or another class"


def _ranked(claim: ResourceClaim) -> list[tuple[str, AllocatedConfiguration]]:
    """The configurations of the allocation and their paths. Later ones have precedence. Raises ConfigError.

    The scheduler copies entries in their order, some of them twice. The path of an entry of the claim is that in the
    spec. The path of an entry of a class is that in the allocation.
    """
    found: list[tuple[str, AllocatedConfiguration]] = []
    spec = [(one.requests, one.opaque) for one in claim.spec.config]
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
    return sorted(found, key=lambda one: _SOURCES.index(one[1].source))  # keeps the order inside of a source
