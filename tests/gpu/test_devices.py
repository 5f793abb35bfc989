# SPDX-License-Identifier: Apache-2.0
"""GPUs as DRA devices: the names, attributes, capacities and counters that claims are written for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.devices import GpuDevices, Reason, describe
from dra_driver.gpu.devices.attributes import model_name
from dra_driver.gpu.devices.names import gpu_name, mig_name
from dra_driver.gpu.inventory import Gpu, Inventory, MigProfile
from dra_driver.gpu.nvml import Fabric, FabricState, GpuInstanceProfile, MigMode, Placement
from dra_driver.kube.resource import AttributeValue, CounterConsumption, Device, DeviceCapacity, Quantity, Version
from tests.support.nodes import make_node

WHOLE = Gpu(
    index=1,
    minor=3,
    uuid="GPU-1",
    product_name="NVIDIA H100 80GB HBM3",
    brand="Nvidia",
    architecture="Hopper",
    compute_capability=(9, 0),
    memory=80 << 30,
    pci_address="0000:3b:00.0",
    pcie_root="pci0000:3a",
    numa_node=0,
    addressing_mode="None",
    mig_mode=MigMode(False, False),
)
SMALL = GpuInstanceProfile(0, 19, "1g.10gb", 1, 2, 9984, 16, 1, 0, 0, 1, 0)
MEDIA = replace(SMALL, id=20, name="1g.10gb+me", instance_count=1, decoders=2)
LARGE = GpuInstanceProfile(4, 0, "2g.20gb", 2, 1, 20096, 32, 2, 1, 0, 1, 0)
PROFILES = (
    MigProfile("2g.20gb", LARGE, (Placement(0, 2),)),
    MigProfile("1g.10gb", SMALL, (Placement(0, 1), Placement(1, 1))),
    MigProfile("1g.10gb+me", MEDIA, (Placement(1, 1),)),
)
SPLIT = replace(WHOLE, mig_mode=MigMode(True, True), mig_profiles=PROFILES)

DRIVER: dict[str, AttributeValue] = {"driverVersion": Version("570.158.1"), "cudaDriverVersion": Version("12.8.0")}
COMMON: dict[str, AttributeValue] = {
    "productName": "NVIDIA H100 80GB HBM3",
    "model": "H100-80GB-HBM3",
    "brand": "Nvidia",
    "architecture": "Hopper",
    "cudaComputeCapability": Version("9.0.0"),
    "addressingMode": "None",
    "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
    "resource.kubernetes.io/pcieRoot": "pci0000:3a",
    "resource.kubernetes.io/numaNode": 0,
    **DRIVER,
}


def inventory(*gpus: Gpu, driver: str = "570.158.01", cuda: int | None = 12080) -> Inventory:
    """A node with these GPUs."""
    return Inventory(driver, cuda, gpus)


def published(*gpus: Gpu, driver: str = "570.158.01", cuda: int | None = 12080) -> tuple[GpuDevices, ...]:
    """What such a node publishes when nothing special is wanted."""
    return describe(inventory(*gpus, driver=driver, cuda=cuda)).gpus


def amounts(device: Device) -> dict[str, str]:
    """Capacities as they are written."""
    return {name: str(capacity.value) for name, capacity in device.capacity.items()}


def drawn(device: Device) -> dict[str, str]:
    """What the device draws from its GPU's counter set."""
    (consumption,) = device.consumes_counters
    assert consumption.counter_set == "gpu-3-counter-set"
    return {name: str(amount) for name, amount in consumption.counters.items()}


def test_a_whole_gpu_is_one_device() -> None:
    (described,) = published(WHOLE)
    (device,) = described.devices
    assert device == Device(
        "gpu-3",
        attributes={"type": "gpu", "uuid": "GPU-1", **COMMON},
        capacity={"memory": DeviceCapacity(Quantity.parse("80Gi"))},
        consumes_counters=(CounterConsumption("gpu-3-counter-set", {"memory": Quantity.parse("80Gi")}),),
    )
    assert not described.overlapping


@pytest.mark.parametrize(
    ("fact", "attributes"),
    [
        ("product_name", {"productName", "model"}),
        ("brand", {"brand"}),
        ("architecture", {"architecture"}),
        ("compute_capability", {"cudaComputeCapability"}),
        ("pci_address", {"resource.kubernetes.io/pciBusID"}),
        ("pcie_root", {"resource.kubernetes.io/pcieRoot"}),
        ("numa_node", {"resource.kubernetes.io/numaNode"}),
        ("addressing_mode", {"addressingMode"}),
    ],
)
def test_attribute_of_an_unknown_fact_is_left_out(fact: str, attributes: set[str]) -> None:
    (described,) = published(replace(WHOLE, **{fact: None}))  # type: ignore[arg-type]  # rows of a table
    (device,) = described.devices
    assert set(COMMON) - set(device.attributes) == attributes
    assert "memory" in device.capacity


def test_link_attributes_belong_to_whole_gpus_only() -> None:
    fabric = Fabric(FabricState.COMPLETED, "5a1f0c1e-6c3e-4a6f-9f0e-2b7d8c9e0f11", 3)
    links: dict[str, Any] = {"module_id": 4, "nvlink_group": "GPU-0", "fabric": fabric}
    ((whole,), (split,)) = (one.devices[:1] for one in published(replace(WHOLE, **links), replace(SPLIT, **links)))
    linked = {name: value for name, value in whole.attributes.items() if name not in {*COMMON, "type", "uuid"}}
    assert linked == {
        "gpuModuleID": 4,
        "nvlinkGroup": "GPU-0",
        "fabricClique": "5a1f0c1e-6c3e-4a6f-9f0e-2b7d8c9e0f11.3",
    }
    assert not linked.keys() & split.attributes.keys()


@pytest.mark.parametrize(
    "fabric",
    [
        Fabric(FabricState.IN_PROGRESS, "5a1f0c1e-6c3e-4a6f-9f0e-2b7d8c9e0f11", 3),
        Fabric(FabricState.COMPLETED, "5a1f0c1e-6c3e-4a6f-9f0e-2b7d8c9e0f11", 3, status=7),
        Fabric(FabricState.COMPLETED, "00000000-0000-0000-0000-000000000000", 0),
        Fabric(FabricState.COMPLETED, "", 0),
    ],
    ids=["not yet", "failed", "of one node", "of no cluster"],
)
def test_a_gpu_is_of_a_clique_when_it_has_joined_a_fabric_of_several_nodes(fabric: Fabric) -> None:
    (described,) = published(replace(WHOLE, fabric=fabric))
    assert "fabricClique" not in described.devices[0].attributes


def test_a_gpu_that_shares_the_systems_memory_has_no_capacity() -> None:
    (described,) = published(replace(WHOLE, memory=None))
    assert described.devices[0].capacity == {}


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("570.158.01", 12080, DRIVER),
        ("580.95.05", 13000, {"driverVersion": Version("580.95.5"), "cudaDriverVersion": Version("13.0.0")}),
        ("570.158.01", None, {"driverVersion": Version("570.158.1")}),
        ("r570_00", 12080, {"cudaDriverVersion": Version("12.8.0")}),
    ],
)
def test_versions_are_semantic_or_left_out(driver: str, cuda: int | None, expected: dict[str, AttributeValue]) -> None:
    (described,) = published(WHOLE, driver=driver, cuda=cuda)
    attributes = described.devices[0].attributes
    assert {name: attributes[name] for name in DRIVER if name in attributes} == expected


def test_a_long_product_name_is_cut_to_what_an_attribute_holds() -> None:
    (described,) = published(replace(WHOLE, product_name="NVIDIA " + "é" * 40))
    attributes = described.devices[0].attributes
    assert attributes["productName"] == "NVIDIA " + "é" * 28
    assert attributes["model"] == "é" * 32


def test_a_split_gpu_is_all_its_possible_mig_devices_small_ones_first_from_the_end() -> None:
    (described,) = published(SPLIT)
    assert [device.name for device in described.devices] == [
        "gpu-3-mig-1g10gb-19-1",
        "gpu-3-mig-1g10gb-19-0",
        "gpu-3-mig-1g10gb-me-20-1",
        "gpu-3-mig-2g20gb-0-0",
    ]


def test_a_mig_device_has_its_profile_its_parent_and_what_they_share() -> None:
    (described,) = published(SPLIT)
    for device in described.devices:
        profile = "2g.20gb" if "2g" in device.name else "1g.10gb+me" if "-me-" in device.name else "1g.10gb"
        assert device.attributes == {"type": "mig", "parentUUID": "GPU-1", "profile": profile, **COMMON}


def test_a_mig_device_has_the_capacities_of_its_profile() -> None:
    (described,) = published(SPLIT)
    assert amounts(described.devices[3]) == {
        "memory": "20096Mi",
        "multiprocessors": "32",
        "copyEngines": "2",
        "decoders": "1",
        "encoders": "0",
        "jpegEngines": "1",
        "ofaEngines": "0",
    }


def test_the_counter_set_holds_the_most_that_any_profile_draws() -> None:
    (described,) = published(SPLIT)
    assert described.counter_set is not None
    assert described.counter_set.name == "gpu-3-counter-set"
    assert {name: str(total) for name, total in described.counter_set.counters.items()} == {
        "memory": "20096Mi",
        "multiprocessors": "32",
        "copy-engines": "2",
        "decoders": "2",
        "jpeg-engines": "1",
        "memory-slice-0": "1",
        "memory-slice-1": "1",
    }


def test_a_mig_device_draws_its_capacities_and_its_memory_slices() -> None:
    (described,) = published(SPLIT)
    small, _, media, large = described.devices
    shared = {"memory": "9984Mi", "multiprocessors": "16", "copy-engines": "1", "jpeg-engines": "1"}
    assert drawn(small) == {**shared, "memory-slice-1": "1"}
    assert drawn(media) == {**shared, "decoders": "2", "memory-slice-1": "1"}
    assert drawn(large) == {
        "memory": "20096Mi",
        "multiprocessors": "32",
        "copy-engines": "2",
        "decoders": "1",
        "jpeg-engines": "1",
        "memory-slice-0": "1",
        "memory-slice-1": "1",
    }


@pytest.mark.parametrize("profiles", [(), (replace(PROFILES[0], placements=()),)], ids=["no profile", "no placement"])
def test_a_split_gpu_without_anything_to_make_has_no_devices(profiles: tuple[MigProfile, ...]) -> None:
    description = describe(inventory(replace(SPLIT, mig_profiles=profiles)))
    assert description.gpus == ()
    assert [(one.subject, one.reason) for one in description.left_out] == [("GPU-1", Reason.NO_MIG_PROFILES)]


def test_names_of_mig_devices_stand_for_placements() -> None:
    placements = {mig_name(one): one for one in SPLIT.mig_devices()}
    found = placements["gpu-3-mig-1g10gb-me-20-1"]
    assert (found.profile, found.placement) == ("1g.10gb+me", Placement(1, 1))
    (described,) = published(SPLIT)
    assert set(placements) == {device.name for device in described.devices}


def test_gpus_are_named_by_their_minor_not_their_index() -> None:
    assert gpu_name(WHOLE) == "gpu-3"
    assert [one.devices[0].name for one in published(WHOLE, replace(WHOLE, index=0, minor=9))] == [
        "gpu-3",
        "gpu-9",
    ]


@pytest.mark.parametrize(
    ("product", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA A30", "A30"),
        ("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB"),
        ("GH100 [H100 SXM5 80GB]", "H100-SXM5-80GB"),
    ],
)
def test_a_model_is_the_product_in_one_word(product: str, model: str) -> None:
    assert model_name(product) == model


def test_an_h100_in_mig_mode_has_the_official_names_and_counters(tmp_path: Path) -> None:
    first = make_node(tmp_path, "h100x8-mig").describe()[0]
    names = [device.name for device in first.devices]
    assert names == [
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in reversed(range(7))),
        *(f"gpu-0-mig-1g10gb-me-20-{start}" for start in reversed(range(7))),
        *(f"gpu-0-mig-1g20gb-15-{start}" for start in (6, 4, 2, 0)),
        *(f"gpu-0-mig-2g20gb-14-{start}" for start in (4, 2, 0)),
        *(f"gpu-0-mig-3g40gb-9-{start}" for start in (4, 0)),
        "gpu-0-mig-4g40gb-5-0",
        "gpu-0-mig-7g80gb-0-0",
    ]
    assert first.counter_set is not None
    assert {name: str(total) for name, total in first.counter_set.counters.items()} == {
        "memory": "81152Mi",
        "multiprocessors": "132",
        "copy-engines": "8",
        "decoders": "7",
        "jpeg-engines": "7",
        "ofa-engines": "1",
        **{f"memory-slice-{index}": "1" for index in range(8)},
    }


def test_a_gpu_that_cannot_be_described_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    odd = replace(WHOLE, uuid="GPU-odd", minor=4, product_name=7)  # type: ignore[arg-type]
    counted: list[str] = []
    found = describe(inventory(WHOLE, odd), unexpected=counted.append)
    assert [gpu.key for gpu in found.gpus] == ["GPU-1"]
    assert [(one.subject, one.reason) for one in found.left_out] == [("GPU-odd", Reason.UNREADABLE)]
    assert counted == ["describe GPU"]
    assert "Traceback" in caplog.text
