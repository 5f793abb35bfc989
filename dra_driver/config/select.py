# SPDX-License-Identifier: Apache-2.0
"""Which configuration applies to an allocated device.

Later entries win over earlier ones, and the claim's come after the class's; entries are never merged. An
entry that names requests applies to these only, and must then be of the device's kind; one that names none
applies to every device of its kind.
"""

from collections.abc import Sequence

from ..resource import AllocatedConfiguration, AllocatedDevice
from .decode import ConfigError, decode_config
from .types import DeviceConfig


def config_for(
    device: AllocatedDevice, kind: type[DeviceConfig], configs: Sequence[AllocatedConfiguration]
) -> DeviceConfig:
    """The configuration of `kind` for `device`, the default one when nothing was configured. Raises ConfigError."""
    for config in reversed(configs):
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
