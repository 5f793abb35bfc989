# SPDX-License-Identifier: Apache-2.0
"""The opaque configurations that claims and classes carry for this driver (resource.nvidia.com/v1beta1).

`types` defines the configurations and which of them this version can apply. `decode` reads one strictly and finds the
one that applies to an allocated device. Kinds, fields and precedence are those of NVIDIA's DRA driver.
"""

from .decode import API_VERSION, ConfigError, config_for, decode_config
from .types import DeviceConfig, GpuConfig, MigDeviceConfig, MpsConfig, Sharing, Strategy, TimeSlice, unsupported

__all__ = [
    "API_VERSION",
    "ConfigError",
    "DeviceConfig",
    "GpuConfig",
    "MigDeviceConfig",
    "MpsConfig",
    "Sharing",
    "Strategy",
    "TimeSlice",
    "config_for",
    "decode_config",
    "unsupported",
]
