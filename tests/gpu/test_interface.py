# SPDX-License-Identifier: Apache-2.0
"""The NVML interface: both implementations have all of it, and its numbers are NVML's."""

import inspect

import pynvml
import pytest

from dra_driver.gpu.nvml import (
    Architecture,
    ComputeMode,
    EventType,
    FabricState,
    Nvml,
    RecoveryAction,
    Return,
    VirtualizationMode,
)
from dra_driver.gpu.nvml_library import NvmlLibrary
from dra_driver.gpu.profiles import COMPUTE_PROFILE_CONSTANTS, PROFILE_CONSTANTS
from dra_driver.gpu.simulated import SimulatedNvml

METHODS = sorted(Nvml.__abstractmethods__)
EVENTS = {
    EventType.SINGLE_BIT_ECC: "SingleBitEccError",
    EventType.DOUBLE_BIT_ECC: "DoubleBitEccError",
    EventType.XID: "XidCriticalError",
    EventType.SINGLE_BIT_ECC_STORM: "SingleBitEccErrorStorm",
    EventType.DRAM_RETIREMENT: "DramRetirementEvent",
    EventType.DRAM_RETIREMENT_FAILURE: "DramRetirementFailure",
    EventType.NON_FATAL_POISON: "NonFatalPoisonError",
    EventType.FATAL_POISON: "FatalPoisonError",
    EventType.GPU_UNAVAILABLE: "GpuUnavailableError",
    EventType.GPU_RECOVERY_ACTION: "GpuRecoveryAction",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("implementation", [NvmlLibrary, SimulatedNvml])
def test_an_implementation_has_every_method_with_the_interfaces_signature(
    implementation: type[Nvml], method: str
) -> None:
    assert method in vars(implementation)
    assert inspect.signature(getattr(implementation, method)) == inspect.signature(getattr(Nvml, method))


@pytest.mark.parametrize("implementation", [NvmlLibrary, SimulatedNvml])
def test_an_implementation_adds_nothing_to_the_interface(implementation: type[Nvml]) -> None:
    assert [name for name in vars(implementation) if not name.startswith("_") and name not in vars(Nvml)] == []


@pytest.mark.parametrize("code", Return)
def test_return_codes_are_nvmls(code: Return) -> None:
    assert getattr(pynvml, f"NVML_ERROR_{code.name}") == code


def test_codes_of_newer_drivers_are_unknown() -> None:
    assert Return(19) is Return.IN_USE
    assert Return(31) is Return.UNKNOWN
    assert Return(999) is Return.UNKNOWN


@pytest.mark.parametrize("architecture", Architecture)
def test_architectures_are_nvmls(architecture: Architecture) -> None:
    assert getattr(pynvml, f"NVML_DEVICE_ARCH_{architecture.name}") == architecture


@pytest.mark.parametrize("state", FabricState)
def test_fabric_states_are_nvmls(state: FabricState) -> None:
    assert getattr(pynvml, f"NVML_GPU_FABRIC_STATE_{state.name}") == state


@pytest.mark.parametrize("mode", VirtualizationMode)
def test_virtualization_modes_are_nvmls(mode: VirtualizationMode) -> None:
    assert getattr(pynvml, f"NVML_GPU_VIRTUALIZATION_MODE_{mode.name}") == mode


@pytest.mark.parametrize("mode", ComputeMode)
def test_compute_modes_are_nvmls(mode: ComputeMode) -> None:
    assert getattr(pynvml, f"NVML_COMPUTEMODE_{mode.name}") == mode


@pytest.mark.parametrize("action", RecoveryAction)
def test_recovery_actions_are_nvmls(action: RecoveryAction) -> None:
    assert getattr(pynvml, f"NVML_GPU_RECOVERY_ACTION_{action.name}") == action


@pytest.mark.parametrize("event", EventType)
def test_event_types_are_nvmls(event: EventType) -> None:
    assert getattr(pynvml, f"nvmlEventType{EVENTS[event]}") == event


def test_profile_constants_are_nvmls() -> None:
    prefix = "NVML_GPU_INSTANCE_PROFILE_"
    named = {value for name, value in vars(pynvml).items() if name.startswith(prefix) and not name.endswith("_COUNT")}
    assert set(PROFILE_CONSTANTS) <= named
    assert len(COMPUTE_PROFILE_CONSTANTS) == pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
