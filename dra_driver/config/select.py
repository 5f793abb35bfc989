# SPDX-License-Identifier: Apache-2.0
"""Which configuration applies to an allocated device.

The claim's entries win over the class's, and of one source later ones over earlier ones; entries are never merged. An
entry that names requests applies to these only, and must then be of the device's kind; one that names none
applies to every device of its kind.
"""

from collections.abc import Sequence

from ..resource import AllocatedConfiguration, AllocatedDevice
from .decode import ConfigError, decode_config
from .types import DeviceConfig

_SOURCES = ("FromClass", "FromClaim")
"""Where a configuration may come from, those that win last."""


def config_for(
    device: AllocatedDevice, kind: type[DeviceConfig], configs: Sequence[AllocatedConfiguration]
) -> DeviceConfig:
    """The configuration of `kind` for `device`, the default one when nothing was configured. Raises ConfigError."""
    for config in reversed(_by_source(configs)):
        if config.opaque.driver != device.driver:
            continue
        named = bool(config.requests)
        if named and device.request not in config.requests and device.base_request not in config.requests:
            continue
        decoded = decode_config(config.opaque)
        if isinstance(decoded, kind):
            return decoded
        if named:
            raise ConfigError(
                f"request {device.request} is configured with a {type(decoded).__name__}, but device {device.device}"
                f" takes a {kind.__name__}"
            )
    return kind()


def _by_source(configs: Sequence[AllocatedConfiguration]) -> list[AllocatedConfiguration]:
    for config in configs:
        if config.source not in _SOURCES:
            raise ConfigError(
                f"the allocation has a configuration with source {config.source!r}, which this version does not know"
                f" (only {' and '.join(_SOURCES)}): how it ranks among the others cannot be told"
            )
    return sorted(configs, key=lambda config: _SOURCES.index(config.source))  # sorts stably
