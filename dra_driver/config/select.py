# SPDX-License-Identifier: Apache-2.0
"""Which configuration applies to an allocated device.

The claim's entries win over the class's, and of one source later ones over earlier ones; entries are never merged. An
entry that names requests applies to these only, and must then be of the device's kind; one that names none
applies to every device of its kind.
"""

from dataclasses import dataclass
from typing import Final

from ..resource import AllocatedConfiguration, AllocatedDevice, ResourceClaim
from .decode import ConfigError, decode_config
from .types import DeviceConfig, GpuConfig, MigDeviceConfig

_SOURCES: Final = ("FromClass", "FromClaim")
"""Where a configuration may come from, those that win last."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A device's configuration and the path of its parameters, e.g. `spec.devices.config[1].opaque.parameters`; an
    empty one stands for the default. Devices with the same place are one group: they are configured together.
    """

    config: DeviceConfig
    place: str = ""


def config_for(device: AllocatedDevice, kind: type[DeviceConfig], claim: ResourceClaim) -> Chosen:
    """The configuration of `kind` for `device` of `claim`. Raises ConfigError."""
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
    """What is wrong with a configuration that names a request for devices of the other kind."""
    return f"request {request!r} is not given devices that take a {type(config).__name__}: {use_other(config)}"


def use_other(config: DeviceConfig) -> str:
    """What to do about a configuration of the wrong kind."""
    other = GpuConfig if isinstance(config, MigDeviceConfig) else MigDeviceConfig
    return f"use a {other.__name__}, or another class"


def _ranked(claim: ResourceClaim) -> list[tuple[str, AllocatedConfiguration]]:
    """The configurations of the allocation and their paths, those that win last. Raises ConfigError.

    The scheduler copies entries in their order, some of them twice. An entry of the claim has its path in the spec, one
    of a class that in the allocation.
    """
    found: list[tuple[str, AllocatedConfiguration]] = []
    spec = [(one.requests, one.opaque) for one in claim.spec.config]
    for index, config in enumerate(claim.allocation.config if claim.allocation is not None else ()):
        place = f"status.allocation.devices.config[{index}]"
        if config.source not in _SOURCES:
            raise ConfigError(
                f"{place}.source",
                f"this version of the driver does not know source {config.source!r} (only {' and '.join(_SOURCES)}):"
                " how the configuration ranks among the others cannot be told",
            )
        if config.source == "FromClaim" and (config.requests, config.opaque) in spec:
            place = f"spec.devices.config[{spec.index((config.requests, config.opaque))}]"
        found.append((place, config))
    return sorted(found, key=lambda one: _SOURCES.index(one[1].source))  # sorts stably
