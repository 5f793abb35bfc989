# SPDX-License-Identifier: Apache-2.0
"""Reading opaque configurations: what they mean, and what a mistake is answered with."""

from typing import Any

import pytest

from dra_driver.config import (
    API_VERSION,
    ConfigError,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    MpsConfig,
    Sharing,
    Strategy,
    TimeSlice,
    decode_config,
)
from dra_driver.resource import OpaqueConfiguration, Quantity

JSON = dict[str, Any]

GPU = {"apiVersion": API_VERSION, "kind": "GpuConfig"}
MIG = {"apiVersion": API_VERSION, "kind": "MigDeviceConfig"}


def read(parameters: JSON) -> DeviceConfig:
    """The configuration with these parameters."""
    return decode_config(OpaqueConfiguration("gpu.nvidia.com", parameters))


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
    ({**GPU, "sharing": {"strategy": "MPS"}}, GpuConfig(Sharing(Strategy.MPS))),
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
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=0)},
        GpuConfig(Sharing(Strategy.MPS, mps=MpsConfig(active_thread_percentage=0))),
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=100)},
        GpuConfig(Sharing(Strategy.MPS, mps=MpsConfig(active_thread_percentage=100))),
    ),
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
        "kind: 'ComputeDomainChannelConfig' is not supported (there are GpuConfig and MigDeviceConfig)",
    ),
    ({**GPU, "kind": 5}, "kind: must be a string, not a number"),
    ({**GPU, "shared": {}}, "shared: unknown field; did you mean 'sharing'?"),
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
    ({**GPU, "sharing": slicing(mpsConfig={})}, "sharing.mpsConfig: does not go with strategy TimeSlicing"),
    (
        {**GPU, "sharing": {"strategy": "MPS", "timeSlicingConfig": {}}},
        "sharing.timeSlicingConfig: does not go with strategy MPS",
    ),
    (
        {**MIG, "sharing": slicing(timeSlicingConfig={})},
        "sharing.timeSlicingConfig: unknown field (known here: mpsConfig, strategy)",
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=101)},
        "sharing.mpsConfig.defaultActiveThreadPercentage: must be 0 to 100, not 101",
    ),
    (
        {**GPU, "sharing": mps(defaultActiveThreadPercentage=-1)},
        "sharing.mpsConfig.defaultActiveThreadPercentage: must be 0 to 100, not -1",
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
]


@pytest.mark.parametrize(("parameters", "config"), MEANINGS)
def test_parameters_mean(parameters: JSON, config: DeviceConfig) -> None:
    assert read(parameters) == config


@pytest.mark.parametrize(("parameters", "error"), MISTAKES, ids=[error for _, error in MISTAKES])
def test_a_mistake_is_answered_with_the_driver_and_the_field(parameters: JSON, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(parameters)
    assert str(raised.value) == f"opaque configuration for gpu.nvidia.com: {error}"
