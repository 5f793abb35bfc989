# SPDX-License-Identifier: Apache-2.0
"""Decodes opaque parameters strictly: each unknown or invalid field is an error.

The plugin, the webhook, lint and dry runs all call `decode_config` and `ineffective`. Therefore they report the same
problems of a configuration. Each error has the path of its field.
"""

import re
from collections.abc import Sequence

from ..kube.resource import Quantity
from ..kube.resource.codec import DecodeError, Fields
from ..names import AdditionalDevice
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

API_VERSION = "resource.nvidia.com/v1beta1"

_KINDS = tuple(kind.__name__ for kind in DEVICE_TYPES)
_DOMAIN_KINDS = (ComputeDomainChannelConfig.__name__, ComputeDomainDaemonConfig.__name__)
_MEBIBYTE = 1 << 20
_INT64_MAX = (1 << 63) - 1
_INDEX = re.compile(r"[0-9]+", re.ASCII)


class ConfigError(DecodeError):
    """A configuration is invalid. `path` is the field, and `problem` is what is wrong with it."""


def decode_config(parameters: object, place: str = "", *, of_class: bool = False) -> DeviceConfig:
    """The configuration in opaque parameters. `place` is their path in the object, which is a DeviceClass if
    `of_class`. Raises ConfigError.
    """
    try:
        return _config(Fields(parameters, place), of_class)
    except DecodeError as error:
        raise ConfigError(error.path, error.problem) from None


def decode_domain_config(parameters: object, place: str = "") -> DomainConfig:
    """The configuration in opaque parameters for the driver compute-domain.nvidia.com. Raises ConfigError."""
    try:
        return _domain_config(Fields(parameters, place))
    except DecodeError as error:
        raise ConfigError(error.path, error.problem) from None


def ineffective(config: DeviceConfig, place: str = "") -> ConfigError | None:
    """A valid setting that has no effect. This is only a warning."""
    if not isinstance(config, MigDeviceConfig) or config.sharing is None:
        return None
    if config.sharing.strategy is not Strategy.TIME_SLICING:
        return None
    return ConfigError(
        _join(place, "sharing.strategy"),
        "TimeSlicing changes nothing for a MIG device: the interval is a setting of the whole GPU",
    )


def _join(place: str, field: str) -> str:
    return f"{place}.{field}" if place else field


def _kind(fields: Fields, known: Sequence[str]) -> str:
    """The kind of a configuration, whose apiVersion is checked, too."""
    version, kind = fields.required_text("apiVersion"), fields.required_text("kind")
    if version != API_VERSION:
        raise fields.error("apiVersion", f"must be {API_VERSION}, not {version!r}")
    if kind not in known:
        raise fields.error("kind", f"{kind!r} is not supported (there are {', '.join(known[:-1])} and {known[-1]})")
    return kind


def _domain_config(fields: Fields) -> DomainConfig:
    kind, domain = _kind(fields, _DOMAIN_KINDS), fields.text("domainID")
    if not domain:
        raise fields.error("domainID", "cannot be empty: it is the UID of a ComputeDomain")
    config: DomainConfig = ComputeDomainDaemonConfig(domain)
    if kind == ComputeDomainChannelConfig.__name__:
        mode = fields.text("allocationMode") or "Single"
        if mode not in ("Single", "All"):
            raise fields.error("allocationMode", f"must be Single or All, not {mode!r}")
        config = ComputeDomainChannelConfig(domain, mode == "All")
    fields.finish()
    return config


def _config(fields: Fields, of_class: bool) -> DeviceConfig:
    kind = _kind(fields, _KINDS)
    config: DeviceConfig
    if kind == VfioDeviceConfig.__name__:
        iommu = fields.object("iommu")
        config = VfioDeviceConfig() if iommu is None else _vfio(iommu)
    else:
        form = GpuConfig if kind == GpuConfig.__name__ else MigDeviceConfig
        sharing = fields.object("sharing")
        shared = None if sharing is None else _sharing(sharing, mig=form is MigDeviceConfig)
        config = form(shared, _additional(fields, of_class))
    fields.finish()
    return config


def _additional(fields: Fields, of_class: bool) -> tuple[AdditionalDevice, ...]:
    """The field `additionalDevices`. Claims may not ask for hardware that is not theirs, classes are an
    administrator's.
    """
    name = "additionalDevices"
    for index, value in enumerate(found := fields.texts(name)):
        if value not in tuple(AdditionalDevice):
            raise fields.error(f"{name}[{index}]", f"must be one of {', '.join(AdditionalDevice)}, not {value!r}")
        if AdditionalDevice(value).reaches_beyond_the_claim and not of_class:
            raise fields.error(
                f"{name}[{index}]",
                f"{value} gives access to hardware that is not allocated to the claim, so only a DeviceClass or the"
                " driver's policy can ask for it",
            )
    return tuple(map(AdditionalDevice, dict.fromkeys(found)))


def _vfio(fields: Fields) -> VfioDeviceConfig:
    """The field `iommu`. An empty policy is the default, as in NVIDIA's driver."""
    name = fields.text("backendPolicy") or IommuBackend.LEGACY_ONLY
    if name not in tuple(IommuBackend):
        raise fields.error("backendPolicy", f"must be {' or '.join(IommuBackend)}, not {name!r}")
    config = VfioDeviceConfig(IommuBackend(name), fields.flag("enableAPIDevice"))
    fields.finish()
    return config


def _sharing(fields: Fields, *, mig: bool) -> Sharing:
    """The field `sharing`. For a MIG device it has no time-slicing settings."""
    name = fields.required_text("strategy")
    if name not in tuple(Strategy):
        raise fields.error("strategy", f"must be {' or '.join(Strategy)}, not {name!r}")
    strategy = Strategy(name)
    slicing = None if mig else fields.object("timeSlicingConfig")
    mps = fields.object("mpsConfig")
    if slicing is not None and strategy is not Strategy.TIME_SLICING:
        raise fields.error("timeSlicingConfig", f"is not allowed with strategy {strategy}")
    if mps is not None and strategy is not Strategy.MPS:
        raise fields.error("mpsConfig", f"is not allowed with strategy {strategy}")
    interval = TimeSlice.DEFAULT if slicing is None else _interval(slicing)
    limits = None if mps is None else _mps(mps, "MIG-" if mig else "GPU-")
    fields.finish()
    return Sharing(strategy, interval, MpsConfig() if limits is None and strategy is Strategy.MPS else limits)


def _interval(fields: Fields) -> TimeSlice:
    name = fields.text("interval", TimeSlice.DEFAULT)
    if name not in tuple(TimeSlice):
        raise fields.error("interval", f"must be one of {', '.join(TimeSlice)}, not {name!r}")
    fields.finish()
    return TimeSlice(name)


def _mps(fields: Fields, uuid_prefix: str) -> MpsConfig:
    percentage = fields.integer("defaultActiveThreadPercentage")
    if percentage is not None and not 1 <= percentage <= 100:
        raise fields.error("defaultActiveThreadPercentage", f"must be 1 to 100, not {percentage}")
    limit = fields.quantity("defaultPinnedDeviceMemoryLimit")
    if limit is not None:
        _check_limit(fields, "defaultPinnedDeviceMemoryLimit", limit)
    limits: dict[str, Quantity] = {}
    for key, value in (fields.raw_object("defaultPerDevicePinnedMemoryLimit") or {}).items():
        field = f"defaultPerDevicePinnedMemoryLimit[{key}]"
        if not key.startswith(uuid_prefix) and not _INDEX.fullmatch(key):
            raise fields.error(field, f"must name a device by its UUID ({uuid_prefix}...) or its index (0, 1, ...)")
        limits[key] = fields.as_quantity(field, value)
        _check_limit(fields, field, limits[key])
    config = MpsConfig(percentage, limit, limits, fields.flag("multiUser"))
    fields.finish()
    return config


def _check_limit(fields: Fields, field: str, limit: Quantity) -> None:
    """Refuse limits below 1 MiB, because MPS needs limits in whole MiB."""
    if limit.value < _MEBIBYTE:
        raise fields.error(field, f"{limit} is less than 1Mi")
    if limit.value > _INT64_MAX:
        raise fields.error(field, f"{limit} does not fit a 64-bit integer")
