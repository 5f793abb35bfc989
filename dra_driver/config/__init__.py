# SPDX-License-Identifier: Apache-2.0
"""The opaque configurations for the two drivers in claims and classes (resource.nvidia.com/v1beta1).

`types` has the configurations. `decode` reads them strictly, and finds settings without effect. `select` finds the
configuration of an allocated device. Kinds, fields and precedence are those of NVIDIA's DRA driver.
"""

from .decode import API_VERSION, ConfigError, decode_config, decode_domain_config, ineffective
from .select import Chosen, config_for, domain_config_for, misfit, require_one_backend, use_other
from .types import (
    DEVICE_TYPES,
    ComputeDomainChannelConfig,
    ComputeDomainDaemonConfig,
    DeviceConfig,
    DomainConfig,
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
    "ComputeDomainChannelConfig",
    "ComputeDomainDaemonConfig",
    "ConfigError",
    "DeviceConfig",
    "DomainConfig",
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
    "decode_domain_config",
    "domain_config_for",
    "ineffective",
    "misfit",
    "require_one_backend",
    "use_other",
]
