# SPDX-License-Identifier: Apache-2.0
"""The opaque configurations that claims and classes carry for this driver (resource.nvidia.com/v1beta1).

`types` says what there is, `decode` reads one strictly, `select` finds the one that applies to an allocated
device, `support` tells what of it this version cannot apply. Kinds, fields and precedence are those of NVIDIA's DRA
driver.
"""

from .decode import API_VERSION, ConfigError, decode_config
from .select import config_for
from .support import unsupported
from .types import DeviceConfig, GpuConfig, MigDeviceConfig, MpsConfig, Sharing, Strategy, TimeSlice

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
