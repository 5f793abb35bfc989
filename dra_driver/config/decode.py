# SPDX-License-Identifier: Apache-2.0
"""Opaque parameters -> a configuration. Strict: what is not understood is not guessed.

Which configuration applies to an allocated device.

The claim's entries win over the class's, and of one source later ones over earlier ones; entries are never merged. An
entry that names requests applies to these only, and must then be of the device's kind; one that names none
applies to every device of its kind.
"""

from collections.abc import Sequence

from ..errors import DriverError
from ..resource import AllocatedConfiguration, AllocatedDevice, OpaqueConfiguration
from ..resource.codec import DecodeError, Fields
from .types import DeviceConfig, GpuConfig, MigDeviceConfig, MpsConfig, Sharing, Strategy, TimeSlice

API_VERSION = "resource.nvidia.com/v1beta1"

_KINDS = ("GpuConfig", "MigDeviceConfig")
_MEBIBYTE = 1 << 20


class ConfigError(DriverError, ValueError):
    """A configuration that cannot be used; the text names the field."""


def decode_config(opaque: OpaqueConfiguration) -> DeviceConfig:
    """The configuration in `opaque`. Raises ConfigError."""
    try:
        return _config(Fields(opaque.parameters))
    except DecodeError as error:
        raise ConfigError(f"opaque configuration for {opaque.driver}: {error}") from None


def _config(fields: Fields) -> DeviceConfig:
    version, kind = fields.required_text("apiVersion"), fields.required_text("kind")
    if version != API_VERSION:
        raise fields.error("apiVersion", f"must be {API_VERSION}, not {version!r}")
    if kind not in _KINDS:
        raise fields.error("kind", f"{kind!r} is not supported (there are {' and '.join(_KINDS)})")
    inner = fields.object("sharing")
    config: DeviceConfig
    if kind == "GpuConfig":
        config = GpuConfig(None if inner is None else _sharing(inner, time_slicing=True))
    else:
        config = MigDeviceConfig(None if inner is None else _sharing(inner, time_slicing=False))
    fields.finish()
    return config


def _sharing(fields: Fields, *, time_slicing: bool) -> Sharing:
    """`sharing`; a MIG device's has no time-slicing settings."""
    name = fields.required_text("strategy")
    if name not in tuple(Strategy):
        raise fields.error("strategy", f"must be {' or '.join(Strategy)}, not {name!r}")
    strategy = Strategy(name)
    slicing = fields.object("timeSlicingConfig") if time_slicing else None
    mps = fields.object("mpsConfig")
    if slicing is not None and strategy is not Strategy.TIME_SLICING:
        raise fields.error("timeSlicingConfig", f"does not go with strategy {strategy}")
    if mps is not None and strategy is not Strategy.MPS:
        raise fields.error("mpsConfig", f"does not go with strategy {strategy}")
    sharing = Sharing(
        strategy,
        TimeSlice.DEFAULT if slicing is None else _interval(slicing),
        None if mps is None else _mps(mps),
    )
    fields.finish()
    return sharing


def _interval(fields: Fields) -> TimeSlice:
    name = fields.text("interval", TimeSlice.DEFAULT)
    if name not in tuple(TimeSlice):
        raise fields.error("interval", f"must be one of {', '.join(TimeSlice)}, not {name!r}")
    fields.finish()
    return TimeSlice(name)


def _mps(fields: Fields) -> MpsConfig:
    percentage = fields.integer("defaultActiveThreadPercentage")
    if percentage is not None and not 0 <= percentage <= 100:
        raise fields.error("defaultActiveThreadPercentage", f"must be 0 to 100, not {percentage}")
    limit = fields.quantity("defaultPinnedDeviceMemoryLimit")
    limits = {
        key: fields.as_quantity(_device_limit(key), value)
        for key, value in (fields.raw_object("defaultPerDevicePinnedMemoryLimit") or {}).items()
    }
    named = {"defaultPinnedDeviceMemoryLimit": limit, **{_device_limit(key): each for key, each in limits.items()}}
    for field, quantity in named.items():
        if quantity is not None and quantity.value < _MEBIBYTE:
            raise fields.error(field, f"{quantity} is less than 1Mi")
    config = MpsConfig(percentage, limit, limits, fields.flag("multiUser"))
    fields.finish()
    return config


def _device_limit(key: str) -> str:
    return f"defaultPerDevicePinnedMemoryLimit[{key}]"


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
