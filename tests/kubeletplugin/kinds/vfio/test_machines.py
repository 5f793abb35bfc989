# SPDX-License-Identifier: Apache-2.0
"""What a claim's configuration and origin mean for GPUs of virtual machines: the plan, its record, the container."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config import API_VERSION
from dra_driver.gpu.devices import device_targets
from dra_driver.gpu.fabric import Partition, SwitchFacts
from dra_driver.gpu.inventory import PciGpu
from dra_driver.gpu.nvml import Nvml
from dra_driver.gpu.policy import GpuRule, NodePolicy, PassthroughMode
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.api import ApiError
from dra_driver.kube.resource.claim import EXTENDED_CLAIM_ANNOTATION
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.model import ClaimRef, Plan, Record, SpecPlace, State
from kubeletplugin.claims.records import decode, encode
from kubeletplugin.containers.cdi import ContainerEdits, DriverFilesError, DriverRoot
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.fabric.step import FabricStep
from kubeletplugin.kinds.mig.mode import MigModeStep
from kubeletplugin.kinds.vfio.device import SeenGpu, VfioKind
from kubeletplugin.kinds.vfio.kubevirt import no_resource, resource_variables
from kubeletplugin.kinds.vfio.machine import Passthrough
from kubeletplugin.kinds.vfio.step import VfioStep
from kubeletplugin.node.folders import NodeFolders
from kubeletplugin.node.node import Node
from tests.kubeletplugin.containers.cdi.trees import file
from tests.support.kubevirt import plugin_devices
from tests.support.nodes import board_inventory, driver_root_of, hardware_of
from tests.support.plans import NO_POLICY, make_plan

JSON = dict[str, Any]

REF = ClaimRef("team", "claim", "uid")
NODE = board_inventory(boards()["H100-SXM5-80GB"], 3)
GPUS, DEVICES = NODE.gpus, device_targets(NODE)
ADDRESSES = ("0000:10:00.0", "0000:11:00.0", "0000:12:00.0")
CLASS = "vfio.gpu.nvidia.com"
RESOURCE = "nvidia.com/GH100_H100_SXM5_80GB"
NAME = "PCI_RESOURCE_NVIDIA_COM_GH100_H100_SXM5_80GB"
IMPLICIT = "PCI_RESOURCE_DEVICECLASS_RESOURCE_KUBERNETES_IO_VFIO_GPU_NVIDIA_COM"
VOID = "NVIDIA_VISIBLE_DEVICES=void"


def config(*requests: str, kind: str = "VfioDeviceConfig", source: str = "FromClaim", **iommu: object) -> JSON:
    """A configuration for requests."""
    parameters = {"apiVersion": API_VERSION, "kind": kind, **({"iommu": iommu} if iommu else {})}
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters},
    }


def plan(
    requests: Sequence[str],
    *configs: JSON,
    extended: bool = False,
    resources: Mapping[str, str] | None = None,
    group: Sequence[PciGpu] = (),
    policy: NodePolicy = NO_POLICY,
) -> Plan:
    """The plan of a claim with the GPUs 0, 1 ... for these requests. The first may be that of a `group`."""
    results = [
        {"request": request, "driver": "gpu.nvidia.com", "pool": "node", "device": f"gpu-vfio-{index}"}
        for index, request in enumerate(requests)
    ]
    wanted = [{"name": name, "exactly": {"deviceClassName": CLASS}} for name in dict.fromkeys(requests)]
    annotations = {EXTENDED_CLAIM_ANNOTATION: "true"} if extended else {}
    value = {
        "metadata": {"name": "claim", "namespace": "team", "uid": "uid", "annotations": annotations},
        "spec": {"devices": {"requests": wanted}},
        "status": {"allocation": {"devices": {"results": results, "config": list(configs)}}},
    }
    claim = decode_claim(value, V1)
    variables = resource_variables(claim, lambda name: (resources or {}).get(name, ""))
    if not group:
        return make_plan(REF, claim, "node", DEVICES.get, variables=variables)
    find = {**DEVICES, "gpu-vfio-0": group[0]}.get
    switches = SwitchFacts((Partition(7, (1, 2)), Partition(8, (1,))), shared=True)

    def seen(pci: PciGpu) -> SeenGpu:
        return SeenGpu(GPUS[pci.position], GPUS[pci.position].uuid, GPUS[pci.position].module_id)

    return make_plan(
        REF,
        claim,
        "node",
        find,
        policy,
        seen=seen,
        variables=variables,
        switches=switches,
        group=lambda _: tuple(group),
    )


@pytest.fixture
def root(tmp_path: Path) -> DriverRoot:
    """A node with the nodes of all groups, which are numbered as the GPUs of the board are."""
    groups = [kind.iommu_group for kind in kinds(plan(["a", "b", "c"]))]
    for path in ("vfio/vfio", "iommu", *(f"vfio/{group}" for group in groups)):
        file(tmp_path, f"/dev/{path}")
    for number, address in enumerate(ADDRESSES):
        file(tmp_path, f"/sys/bus/pci/devices/{address}/vfio-dev/vfio{number}/dev")
        file(tmp_path, f"/dev/vfio/devices/vfio{number}")
    return driver_root_of(tmp_path)


def kinds(made: Plan) -> list[VfioKind]:
    """The GPUs of a plan."""
    return [device.kind for device in made.devices if isinstance(device.kind, VfioKind)]


def edits_of(root: DriverRoot, made: Plan, name: str) -> ContainerEdits:
    """What a container gets for a device of a plan."""
    (device,) = (device for device in made.devices if device.name == name)
    path = root.machine.path
    node = Node("node", "boot", NodeFolders(path, path, path, path, hardware_of(path, no_nvml)))
    return device.kind.edits(SpecPlace(Record(State.PREPARED, "boot", made), node, root), device)


def no_nvml() -> Nvml:
    """A spec is written without NVML."""
    raise AssertionError


def nodes(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


# The plan


@pytest.mark.parametrize(
    ("configs", "access"),
    [
        ((), Passthrough()),
        ((config(),), Passthrough()),
        ((config(enableAPIDevice=True),), Passthrough(api_device=True)),
        ((config("gpu", backendPolicy="PreferIommuFD"),), Passthrough(prefer_iommufd=True)),
        ((config(enableAPIDevice=True, source="FromClass"), config()), Passthrough()),
        ((config(kind="GpuConfig"),), Passthrough()),
    ],
)
def test_the_configuration_of_a_machine(configs: Sequence[JSON], access: Passthrough) -> None:
    (kind,) = kinds(plan(["gpu"], *configs))
    assert kind.access == access


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        ([config("a", kind="GpuConfig")], "status.allocation.devices.config[0].opaque.parameters.kind: request 'a' is"),
        ([config(enableApiDevice=True)], "parameters.iommu.enableApiDevice: unknown field"),
        (
            [config("a", enableAPIDevice=True), config("b")],
            "configured differently, by status.allocation.devices.config[0].opaque.parameters and",
        ),
        ([config("b", enableAPIDevice=True)], "configured differently, by the default and"),
    ],
)
def test_a_configuration_that_cannot_be_used_fails_the_claim(configs: Sequence[JSON], problem: str) -> None:
    with pytest.raises(PrepareError, match=re.escape(problem)):
        plan(["a", "b"], *configs)


def test_equal_configurations_of_several_requests_are_one() -> None:
    both = kinds(plan(["a", "b"], config("a", enableAPIDevice=True), config("b", enableAPIDevice=True)))
    assert {kind.access for kind in both} == {Passthrough(api_device=True)}


def test_a_machine_that_asks_for_an_extended_resource_gets_what_the_device_plugin_gives() -> None:
    (kind,) = kinds(plan(["container-0-request-0"], extended=True, resources={CLASS: RESOURCE}))
    assert kind.access == Passthrough(prefer_iommufd=True, api_device=True, variables=(NAME, IMPLICIT))
    (kind,) = kinds(plan(["container-0-request-0"], config(source="FromClass"), extended=True))
    assert kind.access == Passthrough(variables=(IMPLICIT,))


def test_an_api_server_that_does_not_answer_for_the_class_fails_the_claim_for_now() -> None:
    def refuse(_: str) -> str:
        raise ApiError("the API server does not answer")

    wanted = {"name": "container-0-request-0", "exactly": {"deviceClassName": CLASS}}
    meta = {"name": "claim", "uid": "uid", "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"}}
    claim = decode_claim({"metadata": meta, "spec": {"devices": {"requests": [wanted]}}}, V1)
    with pytest.raises(ApiError):
        resource_variables(claim, refuse)
    assert no_resource(CLASS) == ""


# The record


@pytest.mark.parametrize("extended", [True, False])
def test_everything_that_the_container_gets_is_recorded(extended: bool) -> None:
    made = plan(["container-0-request-0"] * 2, config(enableAPIDevice=True), extended=extended)
    assert decode(gpu_driver(), encode(Record(State.PREPARED, "boot", made))).plan == made


# The container


def test_a_container_gets_the_group_and_no_files_of_a_driver(root: DriverRoot) -> None:
    made = plan(["gpu"])
    edits = edits_of(root, made, "gpu-vfio-0")
    assert nodes(edits) == [f"/dev/vfio/{kinds(made)[0].iommu_group}"]
    assert (edits.env, edits.mounts, edits.hooks) == ((VOID,), (), ())


def test_a_container_gets_the_nodes_that_are_configured(root: DriverRoot) -> None:
    made = plan(["gpu"], config(backendPolicy="PreferIommuFD", enableAPIDevice=True))
    group = f"/dev/vfio/{kinds(made)[0].iommu_group}"
    assert nodes(edits_of(root, made, "gpu-vfio-0")) == [
        group,
        "/dev/vfio/vfio",
        "/dev/vfio/devices/vfio0",
        "/dev/iommu",
    ]


def test_a_node_that_is_missing_fails_the_claim(root: DriverRoot) -> None:
    (root.dev.path / "dev/vfio/vfio").unlink()
    with pytest.raises(DriverFilesError, match="/dev/vfio/vfio is missing"):
        edits_of(root, plan(["gpu"], config(enableAPIDevice=True)), "gpu-vfio-0")


@pytest.mark.parametrize(("requests", "given"), [(["gpu"], []), (["gpu", "gpu"], ["/dev/egm4"])])
def test_memory_of_the_host_belongs_to_the_claim_with_all_its_gpus(
    root: DriverRoot, requests: list[str], given: list[str]
) -> None:
    file(root.dev.path, "/dev/egm4")
    file(root.dev.path, "/sys/class/egm/egm4/gpu_devices", "\n".join(ADDRESSES[:2]))
    made = plan(requests)
    for device in made.devices:
        assert nodes(edits_of(root, made, device.name))[1:] == given


def environment(root: DriverRoot, made: Plan, container: str) -> dict[str, str]:
    """The variables of a container with all devices of its requests. The last value of a variable counts."""
    devices = [one.name for one in made.devices if one.request.startswith(f"{container}-")]
    pairs = [one.partition("=") for name in devices for one in edits_of(root, made, name).env]
    return {name: value for name, _, value in pairs}


def test_kubevirt_finds_the_gpus_of_each_container_in_its_variables(root: DriverRoot) -> None:
    requests = ["container-0-request-0", "container-0-request-0", "container-1-request-0"]
    made = plan(requests, extended=True, resources={CLASS: RESOURCE})
    first, second = (environment(root, made, name) for name in ("container-0", "container-1"))
    assert first == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        NAME: ",".join(ADDRESSES[:2]),
        IMPLICIT: ",".join(ADDRESSES[:2]),
    }
    assert plugin_devices(first, RESOURCE, RESOURCE) == list(ADDRESSES[:2])
    assert plugin_devices(second, RESOURCE) == [ADDRESSES[2]]


def test_a_container_that_asks_by_both_names_of_a_class_finds_each_gpu_once(root: DriverRoot) -> None:
    made = plan(["container-0-request-0", "container-0-request-1"], extended=True, resources={CLASS: RESOURCE})
    names = (f"deviceclass.resource.kubernetes.io/{CLASS}", RESOURCE)
    assert plugin_devices(environment(root, made, "container-0"), *names) == list(ADDRESSES[:2])


# GPUs that share an IOMMU group

GROUP = tuple(
    replace(pci, iommu_group=0, group_gpus=tuple({*ADDRESSES[:2]} - {pci.address})) for pci in NODE.pci_gpus[:2]
)
ONLY = NodePolicy((GpuRule(passthrough=PassthroughMode.ONLY),))


def test_a_group_is_one_device_of_several_gpus(root: DriverRoot) -> None:
    made = plan(["container-0-request-0"], extended=True, resources={CLASS: RESOURCE}, group=GROUP, policy=ONLY)
    assert [(device.name, kind.gpu_uuid) for device, kind in zip(made.devices, kinds(made), strict=True)] == [
        ("gpu-vfio-0", GPUS[0].uuid),
        ("gpu-vfio-1", GPUS[1].uuid),
    ]
    fabric, *machines = (step for step in made.steps if not isinstance(step, MigModeStep))
    assert isinstance(fabric, FabricStep)
    assert (fabric.partition, fabric.modules) == (7, (1, 2))
    first, second = kinds(made)
    assert machines == [VfioStep("gpu-vfio-0", first, (second,)), VfioStep("gpu-vfio-1", second, (first,))]
    assert decode(gpu_driver(), encode(Record(State.PREPARED, "boot", made))).plan == made
    (given,) = made.given()
    edits = edits_of(root, made, given.name)
    assert [one for one in nodes(edits) if "devices" not in one] == ["/dev/vfio/0", "/dev/vfio/vfio", "/dev/iommu"]
    assert plugin_devices(environment(root, made, "container-0"), RESOURCE, RESOURCE) == list(ADDRESSES[:2])


@pytest.mark.parametrize("rule", [GpuRule(passthrough=True), GpuRule(indexes=(0,), passthrough=PassthroughMode.ONLY)])
def test_a_group_of_which_the_policy_keeps_a_part_fails_the_claim(rule: GpuRule) -> None:
    with pytest.raises(PrepareError, match="IOMMU group 0 also has"):
        plan(["gpu"], group=GROUP, policy=NodePolicy((rule,)))
