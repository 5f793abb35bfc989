# SPDX-License-Identifier: Apache-2.0
"""The opaque configurations for this driver in claims and classes (resource.nvidia.com/v1beta1).

`types` has the configurations. `decode` reads them strictly, and finds settings without effect. `select` finds the
configuration of an allocated device. Kinds, fields and precedence are those of NVIDIA's DRA driver.
"""

from .decode import API_VERSION, ConfigError, decode_config, ineffective
from .select import Chosen, config_for, misfit, require_one_backend, use_other
from .types import (
    DEVICE_TYPES,
    DeviceConfig,
    GpuConfig,
    IommuBackend,
    MigDeviceConfig,
    MpsConfig,
    Sharing,
    Strategy,
    TimeSlice,
    VfioDeviceConfig,
)

__all__ = [
    "API_VERSION",
    "DEVICE_TYPES",
    "Chosen",
    "ConfigError",
    "DeviceConfig",
    "GpuConfig",
    "IommuBackend",
    "MigDeviceConfig",
    "MpsConfig",
    "Sharing",
    "Strategy",
    "TimeSlice",
    "VfioDeviceConfig",
    "config_for",
    "decode_config",
    "ineffective",
    "misfit",
    "require_one_backend",
    "use_other",
]
