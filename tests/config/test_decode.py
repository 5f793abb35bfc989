# SPDX-License-Identifier: Apache-2.0
"""Reading opaque configurations: what they mean, and what a mistake is answered with."""

from typing import Any

import pytest

from dra_driver.config import (
    API_VERSION,
    ConfigError,
    DeviceConfig,
    GpuConfig,
    IommuBackend,
    MigDeviceConfig,
    MpsConfig,
    Sharing,
    Strategy,
    TimeSlice,
    VfioDeviceConfig,
    decode_config,
    ineffective,
)
from dra_driver.kube.resource import Quantity
from dra_driver.names import AdditionalDevice

JSON = dict[str, Any]
GDS = AdditionalDevice.GDS

GPU = {"apiVersion": API_VERSION, "kind": "GpuConfig"}
MIG = {"apiVersion": API_VERSION, "kind": "MigDeviceConfig"}
VFIO = {"apiVersion": API_VERSION, "kind": "VfioDeviceConfig"}


def read(parameters: JSON) -> DeviceConfig:
    """The configuration with these parameters."""
    return decode_config(parameters)


def slicing(**settings: object) -> JSON:
    """Sharing by time-slicing."""
    return {"strategy": "TimeSlicing", **settings}


def mps(**settings: object) -> JSON:
    """Sharing by MPS with these settings."""
    return {"strategy": "MPS", "mpsConfig": settings}


MEANINGS: list[tuple[JSON, DeviceConfig]] = [
    (GPU, GpuConfig()),
    (MIG, MigDeviceConfig()),
    ({**GPU, "sharing": None}, GpuConfig()),
    ({**GPU, "sharing": slicing()}, GpuConfig(Sharing(Strategy.TIME_SLICING, TimeSlice.DEFAULT))),
    ({**GPU, "sharing": slicing(timeSlicingConfig={})}, GpuConfig(Sharing(Strategy.TIME_SLICING, TimeSlice.DEFAULT))),
    (
        {**GPU, "sharing": slicing(timeSlicingConfig={"interval": "Long"})},
        GpuConfig(Sharing(Strategy.TIME_SLICING, TimeSlice.LONG)),
    ),
    ({**MIG, "sharing": slicing()}, MigDeviceConfig(Sharing(Strategy.TIME_SLICING))),
    ({**GPU, "sharing": {"strategy": "MPS"}}, GpuConfig(Sharing(Strategy.MPS, mps=MpsConfig()))),
    ({**MIG, "sharing": mps()}, MigDeviceConfig(Sharing(Strategy.MPS, mps=MpsConfig()))),
    (
        {
            **GPU,
            "sharing": mps(
                defaultActiveThreadPercentage=50,
                defaultPinnedDeviceMemoryLimit="10Gi",
                defaultPerDevicePinnedMemoryLimit={"0": "5Gi", "GPU-1": 1 << 20},
                multiUser=True,
            ),
        },
        GpuConfig(
            Sharing(
                Strategy.MPS,
                mps=MpsConfig(
                    active_thread_percentage=50,
                    pinned_memory_limit=Quantity.parse("10Gi"),
                    per_device_memory_limits={"0": Quantity.parse("5Gi"), "GPU-1": Quantity.parse("1Mi")},
                    multi_user=True,
                ),
            )
        ),
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=1)},
        GpuConfig(Sharing(Strategy.MPS, mps=MpsConfig(active_thread_percentage=1))),
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=100)},
        GpuConfig(Sharing(Strategy.MPS, mps=MpsConfig(active_thread_percentage=100))),
    ),
    ({**GPU, "additionalDevices": ["gds", "gdrcopy", "gds"]}, GpuConfig(None, (GDS, AdditionalDevice.GDRCOPY))),
    ({**MIG, "additionalDevices": ["gds"]}, MigDeviceConfig(None, (GDS,))),
    (VFIO, VfioDeviceConfig(IommuBackend.LEGACY_ONLY, api_device=False)),
    ({**VFIO, "iommu": None}, VfioDeviceConfig()),
    ({**VFIO, "iommu": {}}, VfioDeviceConfig()),
    ({**VFIO, "iommu": {"backendPolicy": "", "enableAPIDevice": None}}, VfioDeviceConfig()),
    (
        {**VFIO, "iommu": {"backendPolicy": "LegacyOnly", "enableAPIDevice": True}},
        VfioDeviceConfig(IommuBackend.LEGACY_ONLY, api_device=True),
    ),
    ({**VFIO, "iommu": {"backendPolicy": "PreferIommuFD"}}, VfioDeviceConfig(IommuBackend.PREFER_IOMMUFD)),
]

MISTAKES: list[tuple[JSON, str]] = [
    ({}, "apiVersion: is required"),
    ({"apiVersion": API_VERSION}, "kind: is required"),
    (
        {**GPU, "apiVersion": "gpu.nvidia.com/v1alpha1"},
        "apiVersion: must be resource.nvidia.com/v1beta1, not 'gpu.nvidia.com/v1alpha1'",
    ),
    (
        {**GPU, "kind": "ComputeDomainChannelConfig"},
        "kind: 'ComputeDomainChannelConfig' is not supported (there are GpuConfig, MigDeviceConfig and"
        " VfioDeviceConfig)",
    ),
    ({**GPU, "kind": 5}, "kind: must be a string, not a number"),
    ({**GPU, "shared": {}}, "shared: unknown field; did you mean 'sharing'?"),
    ({**VFIO, "additionalDevices": []}, "additionalDevices: unknown field (known here: apiVersion, iommu, kind)"),
    ({**GPU, "additionalDevices": "gds"}, "additionalDevices: must be a list, not a string"),
    (
        {**GPU, "additionalDevices": ["gds", "rdma"]},
        "additionalDevices[1]: must be one of gds, gdrcopy, mofed, nvswitch, not 'rdma'",
    ),
    *(
        (
            {**form, "additionalDevices": [name]},
            f"additionalDevices[0]: {name} gives access to hardware that is not allocated to the claim, so only a"
            " DeviceClass or the driver's policy can ask for it",
        )
        for form in (GPU, MIG)
        for name in ("mofed", "nvswitch")
    ),
    ({**GPU, "sharing": "MPS"}, "sharing: must be an object, not a string"),
    ({**GPU, "sharing": {}}, "sharing.strategy: is required"),
    ({**GPU, "sharing": {"strategy": "Mps"}}, "sharing.strategy: must be TimeSlicing or MPS, not 'Mps'"),
    (
        {**GPU, "sharing": slicing(interval="Long")},
        "sharing.interval: unknown field (known here: mpsConfig, strategy, timeSlicingConfig)",
    ),
    (
        {**GPU, "sharing": slicing(timeSlicingConfig={"interval": "Longest"})},
        "sharing.timeSlicingConfig.interval: must be one of Default, Short, Medium, Long, not 'Longest'",
    ),
    (
        {**GPU, "sharing": slicing(timeSlicingConfig={"intervall": "Long"})},
        "sharing.timeSlicingConfig.intervall: unknown field; did you mean 'interval'?",
    ),
    ({**GPU, "sharing": slicing(mpsConfig={})}, "sharing.mpsConfig: is not allowed with strategy TimeSlicing"),
    (
        {**GPU, "sharing": {"strategy": "MPS", "timeSlicingConfig": {}}},
        "sharing.timeSlicingConfig: is not allowed with strategy MPS",
    ),
    (
        {**MIG, "sharing": slicing(timeSlicingConfig={})},
        "sharing.timeSlicingConfig: unknown field (known here: mpsConfig, strategy)",
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=101)},
        "sharing.mpsConfig.defaultActiveThreadPercentage: must be 1 to 100, not 101",
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=-1)},
        "sharing.mpsConfig.defaultActiveThreadPercentage: must be 1 to 100, not -1",
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=0)},
        "sharing.mpsConfig.defaultActiveThreadPercentage: must be 1 to 100, not 0",
    ),
    (
        {**GPU, "sharing": mps(defaultPerDevicePinnedMemoryLimit={"MIG-1": "1Gi"})},
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[MIG-1]: must name a device by its UUID (GPU-...) or its"
        " index (0, 1, ...)",
    ),
    (
        {**MIG, "sharing": mps(defaultPerDevicePinnedMemoryLimit={"-1": "1Gi"})},
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[-1]: must name a device by its UUID (MIG-...) or its"
        " index (0, 1, ...)",
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage="50")},
        "sharing.mpsConfig.defaultActiveThreadPercentage: must be an integer, not a string",
    ),
    (
        {**GPU, "sharing": mps(defaultPinnedDeviceMemoryLimit="1Ki")},
        "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: 1Ki is less than 1Mi",
    ),
    (
        {**GPU, "sharing": mps(defaultPerDevicePinnedMemoryLimit={"GPU-1": "1Gi", "0": "1"})},
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[0]: 1 is less than 1Mi",
    ),
    (
        {**GPU, "sharing": mps(defaultPerDevicePinnedMemoryLimit={"0": []})},
        'sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit[0]: must be a quantity such as "40Gi", not a list',
    ),
    ({**GPU, "sharing": mps(multiUser="yes")}, "sharing.mpsConfig.multiUser: must be true or false, not a string"),
    ({**VFIO, "sharing": {"strategy": "MPS"}}, "sharing: unknown field (known here: apiVersion, iommu, kind)"),
    ({**GPU, "iommu": {}}, "iommu: unknown field (known here: additionalDevices, apiVersion, kind, sharing)"),
    ({**VFIO, "iommu": "LegacyOnly"}, "iommu: must be an object, not a string"),
    (
        {**VFIO, "iommu": {"backendPolicy": "preferIommuFD"}},
        "iommu.backendPolicy: must be LegacyOnly or PreferIommuFD, not 'preferIommuFD'",
    ),
    (
        {**VFIO, "iommu": {"enableApiDevice": True}},
        "iommu.enableApiDevice: unknown field; did you mean 'enableAPIDevice'?",
    ),
    (
        {**VFIO, "iommu": {"enableAPIDevice": "true"}},
        "iommu.enableAPIDevice: must be true or false, not a string",
    ),
]


@pytest.mark.parametrize(("parameters", "config"), MEANINGS)
def test_parameters_are_decoded(parameters: JSON, config: DeviceConfig) -> None:
    assert read(parameters) == config


@pytest.mark.parametrize(("parameters", "error"), MISTAKES, ids=[error for _, error in MISTAKES])
def test_a_mistake_is_answered_with_the_driver_and_the_field(parameters: JSON, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(parameters)
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        ("1Mi", 1),
        ("1024Ki", 1),
        ("1500Ki", 1),
        ("1048576", 1),
        (1048576, 1),
        ("1048576000m", 1),
        ("1.5Mi", 1),
        ("1M", None),
        ("1000k", None),
        ("1023Ki", None),
        ("1048575", None),
        ("2M", 1),
        ("2e6", 1),
        ("10G", 9536),
        ("8E", 7629394531250),
        ("10E", None),
        ("1e30", None),
        ("0", None),
        ("-1Gi", None),
    ],
)
@pytest.mark.parametrize("field", ["defaultPinnedDeviceMemoryLimit", "defaultPerDevicePinnedMemoryLimit"])
def test_a_memory_limit_in_every_unit(field: str, text: object, mebibytes: int | None) -> None:
    wanted = text if field == "defaultPinnedDeviceMemoryLimit" else {"0": text}
    parameters = {**GPU, "sharing": mps(**{field: wanted})}
    if mebibytes is None:
        with pytest.raises(
            ConfigError, match=rf"^sharing\.mpsConfig\.{field}(\[0\])?: .* (is less than 1Mi|does not fit)"
        ):
            read(parameters)
        return
    config = read(parameters)
    assert isinstance(config, GpuConfig)
    sharing = config.sharing
    assert sharing is not None
    assert sharing.mps is not None
    limit = sharing.mps.pinned_memory_limit or sharing.mps.per_device_memory_limits["0"]
    assert limit.value >> 20 == mebibytes


@pytest.mark.parametrize("parameters", [None, "text", [], 5])
def test_parameters_have_to_be_an_object(parameters: object) -> None:
    with pytest.raises(ConfigError, match=r"^spec\.config\[0\]\.opaque\.parameters: must be an object, not "):
        decode_config(parameters, "spec.config[0].opaque.parameters")


def test_an_error_has_the_path_of_the_field_in_the_whole_object() -> None:
    with pytest.raises(ConfigError) as raised:
        decode_config({**GPU, "sharing": slicing(mpsConfig={})}, "spec.devices.config[1].opaque.parameters")
    assert raised.value.path == "spec.devices.config[1].opaque.parameters.sharing.mpsConfig"


@pytest.mark.parametrize(
    ("parameters", "vain"),
    [
        (GPU, False),
        ({**GPU, "sharing": slicing(timeSlicingConfig={"interval": "Long"})}, False),
        ({**GPU, "sharing": mps()}, False),
        ({**MIG, "sharing": mps()}, False),
        ({**MIG, "sharing": slicing()}, True),
    ],
)
def test_settings_without_effect_are_found(parameters: JSON, vain: bool) -> None:
    found = ineffective(read(parameters), "here")
    assert (None if found is None else found.path) == ("here.sharing.strategy" if vain else None)


def test_a_class_may_ask_for_hardware_that_no_claim_has() -> None:
    every = [*AdditionalDevice]
    assert decode_config({**GPU, "additionalDevices": [*map(str, every)]}, of_class=True) == GpuConfig(
        None, tuple(every)
    )
