# SPDX-License-Identifier: Apache-2.0
"""From a claim to what has to be done for it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.inventory import Gpu
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.policy import NodePolicy
from dra_driver.gpu.policy.parse import parse_policy
from dra_driver.gpu.session import Session
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.model import ClaimRef, Plan
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.additional_devices import AdditionalDevicesStep
from kubeletplugin.kinds.gpu import GpuKind
from kubeletplugin.kinds.mig.device import MigKind
from kubeletplugin.kinds.mig.instance import LookStep
from kubeletplugin.node.gpus import Found, Gpus
from tests.support.nodes import make_node
from tests.support.plans import NO_POLICY, make_plan

REF = ClaimRef("team", "claim", "uid-1")
GPU = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-0"}
MIG = {**GPU, "request": "mig", "device": "gpu-4-mig-2g20gb-14-2"}


OTHER_DEVICE = {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}}


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Gpus:
    node = make_node(Path(tmp_path_factory.mktemp("node")), "h100x8-mixed")
    return Gpus(Session(node.node.nvml, node.sys_root))


def plan(
    gpus: Gpus,
    results: list[dict[str, Any]] | None,
    config: list[dict[str, Any]] | None = None,
    uid: str = "uid-1",
    find: Callable[[str], Found | None] | None = None,
    policy: NodePolicy = NO_POLICY,
) -> Plan:
    """The plan for a claim with this allocation; None for a claim without one."""
    status = {} if results is None else {"allocation": {"devices": {"results": results, "config": config or []}}}
    value = {"metadata": {"name": "claim", "namespace": "team", "uid": uid}, "spec": {}, "status": status}
    return make_plan(REF, decode_claim(value, V1), "node-a", find or gpus.find, policy, gpu_with=gpus.inventory.gpu)


def opaque(kind: str, **fields: object) -> dict[str, Any]:
    """Claim configuration for request mig."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    return {
        "source": "FromClaim",
        "requests": ["mig"],
        "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters},
    }


def test_a_whole_gpu_and_a_mig_device_become_kinds(gpus: Gpus) -> None:
    whole, mig = plan(gpus, [GPU, MIG]).devices
    assert isinstance(whole.kind, GpuKind)
    assert whole.kind.minor == 0
    assert isinstance(mig.kind, MigKind)
    found = mig.kind.device
    assert (found.profile, found.slices, found.placement) == ("2g.20gb", 2, Placement(2, 2))


@pytest.mark.parametrize(
    ("suffix", "known"), [("", False), ("+me", False), ("+me.all", False), ("-me", False), ("+gfx", True)]
)
def test_a_mig_device_that_does_graphics_knows_where_its_gpu_is(gpus: Gpus, suffix: str, known: bool) -> None:
    found = gpus.find(MIG["device"])
    assert isinstance(found, MigDevice)
    gpu = gpus.inventory.gpu(found.gpu_uuid)
    assert gpu is not None
    assert gpu.pci_address
    named = tuple(replace(profile, name=profile.name + suffix) for profile in gpu.mig_profiles)
    variant = replace(gpu, mig_profiles=named).mig_device(found.profile_id, found.placement)
    (device,) = plan(gpus, [MIG], find=lambda _: variant).devices
    assert isinstance(device.kind, MigKind)
    assert device.kind.device.pci_address == (gpu.pci_address if known else "")


def test_results_of_other_drivers_are_ignored(gpus: Gpus) -> None:
    assert plan(gpus, [{**GPU, "driver": "nic.example.com"}]).devices == ()


def test_the_request_is_named_without_its_alternative(gpus: Gpus) -> None:
    (device,) = plan(gpus, [{**GPU, "request": "gpu/large"}]).devices
    assert device.request == "gpu"


def test_admins_get_nothing_made(gpus: Gpus) -> None:
    assert plan(gpus, [{**GPU, "adminAccess": True}]).steps == ()
    assert [type(step) for step in plan(gpus, [{**MIG, "adminAccess": True}]).steps] == [LookStep]


def test_additional_devices_are_those_of_the_policy_and_of_the_configuration(gpus: Gpus) -> None:
    policy = parse_policy("gpus: [{additionalDevices: [mofed, gds]}, {match: {indexes: [0]}, additionalDevices: []}]")
    wanted = opaque("MigDeviceConfig", additionalDevices=["gds", "gdrcopy"])
    looking = {**MIG, "adminAccess": True}
    for results, expected in (
        ([GPU, MIG], [(MIG["device"], ["mofed", "gds", "gdrcopy"])]),
        ([looking], []),
    ):
        steps = plan(gpus, results, [wanted], policy=policy).steps
        added = [step for step in steps if isinstance(step, AdditionalDevicesStep)]
        assert [(step.cdi_name, [*step.names]) for step in added] == expected


@pytest.mark.parametrize(("capability", "known"), [((6, 1), "6.1"), (None, "unknown")])
def test_mps_for_several_users_is_refused_before_compute_capability_7(
    gpus: Gpus, capability: tuple[int, int] | None, known: str
) -> None:
    gpu = gpus.find(GPU["device"])
    assert isinstance(gpu, Gpu)
    older = replace(gpu, compute_capability=capability)
    wanted = opaque("GpuConfig", sharing={"strategy": "MPS", "mpsConfig": {"multiUser": True}})
    with pytest.raises(PrepareError, match=re.escape(f"{gpu.uuid} is {known}, and MPS serves several users from 7.0")):
        plan(gpus, [GPU], [{**wanted, "requests": ["gpu"]}], find=lambda _: older)


def test_a_default_configuration_changes_nothing(gpus: Gpus) -> None:
    assert plan(gpus, [MIG], [opaque("MigDeviceConfig")]) == plan(gpus, [MIG])


@pytest.mark.parametrize(
    ("results", "config", "uid", "message"),
    [
        (None, [], "uid-1", "ResourceClaim team/claim is not allocated"),
        ([GPU], [], "uid-2", "deleted and created again"),
        ([{**GPU, "pool": "node-b"}], [], "uid-1", "in pool node-b, which is not on this node"),
        ([{**GPU, "device": "gpu-9"}], [], "uid-1", "there is no device gpu-9 on node node-a"),
        ([{**GPU, "device": "gpu-vfio-0", "adminAccess": True}], [], "uid-1", "leave adminAccess out"),
        ([{**GPU, "device": "../gpu-0"}], [], "uid-1", "there is no device ../gpu-0"),
        ([MIG], [opaque("GpuConfig")], "uid-1", "use a MigDeviceConfig"),
        ([MIG], [opaque("MigDeviceConfig", shareing={})], "uid-1", "did you mean 'sharing'"),
        ([MIG], [opaque("MigDeviceConfig", sharing=OTHER_DEVICE)], "uid-1", "[1]: it is for no device"),
        ([MIG], [opaque("ImexConfig")], "uid-1", "'ImexConfig' is not supported"),
    ],
)
def test_a_claim_that_cannot_be_prepared_says_why(
    gpus: Gpus, results: list[dict[str, Any]] | None, config: list[dict[str, Any]], uid: str, message: str
) -> None:
    with pytest.raises(PrepareError, match=re.escape(message)):
        plan(gpus, results, config, uid)


def test_device_names_do_not_depend_on_the_mig_mode(gpus: Gpus) -> None:
    assert isinstance(gpus.find("gpu-4"), Gpu)
    assert isinstance(gpus.find("gpu-0-mig-1g10gb-19-0"), MigDevice)
    assert isinstance(gpus.find("gpu-0"), Gpu)
    assert isinstance(gpus.find("gpu-4-mig-1g10gb-me-20-6"), MigDevice)
