# SPDX-License-Identifier: Apache-2.0
"""The slices under another policy of the driver, compared with those that the driver makes from the hardware."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.nodetypes import simulated_nodes
from dra_driver.dryrun.snapshot import encoded
from dra_driver.dryrun.upgrade.policy import under_policy
from dra_driver.dryrun.upgrade.sides import Side
from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy, PassthroughMode, ShareMode
from dra_driver.kube.resource import Device, DeviceTaint, ResourceSlice, TaintEffect
from dra_driver.kube.resource.codec import Decoded
from dra_driver.names import DRIVER_NAME

from ..conftest import DryRun, Write
from ..test_whole_pod import claim, node, pod, running, several
from .test_upgrade import effects, held, reference

JSON = dict[str, Any]
SIDE = Side.of("1.37", {})
NONE = NodePolicy()
DYNAMIC = NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC),))
STATIC = NodePolicy((GpuRule(mig=MigPolicy.STATIC),))
SHARES = NodePolicy((GpuRule(shares=4),))
MEMORY = NodePolicy((GpuRule(shares=ShareMode.MEMORY),))
PASSTHROUGH = NodePolicy((GpuRule(passthrough=True),))
ONLY = NodePolicy((GpuRule(passthrough=PassthroughMode.ONLY),))
CONDITIONS = NodePolicy((GpuRule(binding_conditions=True),))
HIDDEN = NodePolicy((GpuRule(indexes=(0,), publish=False),))


def slices_of(objects: Iterable[Decoded]) -> list[ResourceSlice]:
    return [one for one in objects if isinstance(one, ResourceSlice)]


def devices_of(objects: Iterable[Decoded]) -> dict[str, Device]:
    return {device.name: device for one in slices_of(objects) if one.driver == DRIVER_NAME for device in one.devices}


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("h100x8", NONE),
        ("h100x8-mig", NONE),
        ("h100x8-mixed", NONE),
        ("h100x8", DYNAMIC),
        ("h100x8", SHARES),
        ("h100x8-mig", MEMORY),
        ("h100x8", PASSTHROUGH),
        ("a100-40x8-mig", NONE),
        ("a100-40x8-mixed", DYNAMIC),
        ("l4x4", CONDITIONS),
        ("v100x8", SHARES),
    ],
)
def test_policy_of_now_leaves_the_slices_as_they_are(kind: str, policy: NodePolicy) -> None:
    published = simulated_nodes(kind, 1, policy)
    found = under_policy(published, policy, SIDE)
    assert not found.unknown
    assert devices_of(found.objects) == devices_of(published)
    assert [one.shared_counters for one in slices_of(found.objects)] == [
        one.shared_counters for one in slices_of(published)
    ]


@pytest.mark.parametrize(
    ("kind", "now", "then"),
    [
        ("h100x8", NONE, DYNAMIC),
        ("h100x8", DYNAMIC, NONE),
        ("h100x8", NONE, SHARES),
        ("h100x8", SHARES, NONE),
        ("h100x8-mig", NONE, MEMORY),
        ("a100-40x8-mig", MEMORY, NONE),
        ("h100x8", NONE, CONDITIONS),
        ("h100x8", NONE, HIDDEN),
        ("l40sx4", PASSTHROUGH, NONE),
        ("a100-40x8-mig", NONE, STATIC),
    ],
)
def test_slices_under_a_policy_are_those_that_the_driver_would_make(
    kind: str, now: NodePolicy, then: NodePolicy
) -> None:
    found = under_policy(simulated_nodes(kind, 1, now), then, SIDE)
    assert not found.unknown
    assert devices_of(found.objects) == devices_of(simulated_nodes(kind, 1, then))


@pytest.mark.parametrize("then", [PASSTHROUGH, ONLY])
def test_gpus_for_virtual_machines_are_those_that_the_driver_would_make(then: NodePolicy) -> None:
    found = devices_of(under_policy(simulated_nodes("h100x8", 1), then, SIDE).objects)
    made = devices_of(simulated_nodes("h100x8", 1, then))

    def known(device: Device) -> Device:
        """The device without what no slice tells before there are GPUs for virtual machines."""
        attributes = {name: value for name, value in device.attributes.items() if name != "iommuFDEnabled"}
        return replace(device, attributes=attributes)

    assert {name: known(device) for name, device in found.items()} == {
        name: known(device) for name, device in made.items()
    }


def test_mig_devices_of_an_administrator_stay_under_a_static_policy(tmp_path: Path) -> None:
    text = """
        driverVersion: 570.158.01
        cudaVersion: "12.8"
        gpus:
        - model: A100-SXM4-40GB
          count: 1
          mig: true
          instances: [{profile: 3g.20gb, start: 4}]
          numaNodes: [0]
          pciAddresses: ["0000:1b:00.0"]
          pcieRoots: ["pci0000:15"]
        """
    file = tmp_path / "a100.yaml"
    file.write_text(text, encoding="utf-8")
    found = under_policy(simulated_nodes(str(file), 1, STATIC), STATIC, SIDE)
    assert [device.attributes["profile"] for device in devices_of(found.objects).values()] == ["3g.20gb"]
    assert devices_of(found.objects) == devices_of(simulated_nodes(str(file), 1, STATIC))


def test_taint_of_a_gpu_is_on_its_new_devices_too() -> None:
    taint = DeviceTaint("gpu.nvidia.com/xid-79", "", TaintEffect.NO_SCHEDULE)
    objects = [
        replace(one, devices=tuple(replace(device, taints=(taint,)) for device in one.devices))
        if isinstance(one, ResourceSlice)
        else one
        for one in simulated_nodes("h100x8", 1)
    ]
    found = devices_of(under_policy(objects, DYNAMIC, SIDE).objects)
    assert len(found) > 8
    assert all(device.taints == (taint,) for device in found.values())


def test_rules_for_other_nodes_do_not_count() -> None:
    policy = NodePolicy((GpuRule(nodes=("other-*",), mig=MigPolicy.DYNAMIC),))
    assert len(devices_of(under_policy(simulated_nodes("h100x8", 1), policy, SIDE).objects)) == 8


def test_node_with_vgpus_keeps_its_slices_and_is_not_known() -> None:
    published = simulated_nodes("l40sx4-vgpu", 1)
    found = under_policy(published, SHARES, SIDE)
    assert devices_of(found.objects) == devices_of(published)
    assert [note.subject for note in found.unknown] == ["nodes new-l40sx4-vgpu-1"]


def test_model_that_is_not_known_keeps_its_slices() -> None:
    published = [
        replace(
            one,
            devices=tuple(
                replace(device, attributes={**device.attributes, "productName": "NVIDIA X1"}) for device in one.devices
            ),
        )
        if isinstance(one, ResourceSlice)
        else one
        for one in simulated_nodes("l4x4", 1)
    ]
    (note,) = under_policy(published, SHARES, SIDE).unknown
    assert note.text.endswith("the model NVIDIA X1 is not among the known ones")


def cluster(kind: str, policy: NodePolicy, *devices: str) -> tuple[str, list[JSON]]:
    """The name of a node of this type, and the node with a pod for each of these devices."""
    objects = simulated_nodes(kind, 1, policy)
    name = slices_of(objects)[0].node_name
    assert name is not None
    found = [node(name), *encoded(slices_of(objects))]
    for number, device in enumerate(devices):
        user = f"user-{number}"
        made = held(f"claim-{number}", name, device, user)
        if "mig" in device:
            made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "mig.nvidia.com"
        found += [made, running(user, name, "100m", resourceClaims=[reference(f"claim-{number}")])]
    return name, found


def test_running_pod_whose_device_is_not_published_any_more_breaks_the_change(dryrun: DryRun, write: Write) -> None:
    _, objects = cluster("a100-40x8-mig", NONE, "gpu-0-mig-1g5gb-19-0")
    policy = write("policy.yaml", "gpus: [{mig: static}]\n")
    flags = ("--slices", write("cluster.json", several(objects)), "--driver-policy", policy, "-o", "json")
    code, out, err = dryrun("upgrade", *flags)
    assert code == 1, err
    report = json.loads(out)
    assert effects(report, "verdict", "Pod user-0") == ["breaks"]
    assert effects(report, "pool", "gpu.nvidia.com") == ["breaks"]


def test_pending_pod_that_fits_under_the_policy_is_helped(dryrun: DryRun, write: Write) -> None:
    _, objects = cluster("h100x8", NONE, "gpu-0")
    waiting = claim("waiting")
    waiting["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "mig.nvidia.com"
    objects += [waiting, pod("waiting", claim="waiting")]
    policy = write("policy.yaml", "gpus: [{mig: dynamic}]\n")
    flags = ("--slices", write("cluster.json", several(objects)), "--driver-policy", policy, "-o", "json")
    code, out, err = dryrun("upgrade", *flags)
    assert code == 0, err
    assert effects(json.loads(out), "verdict", "Pod waiting") == ["helps"]
    assert "breaks" not in effects(json.loads(out), "verdict", "Pod user-0")


def test_wrong_policy_is_an_error(dryrun: DryRun, write: Write) -> None:
    code, _, err = dryrun("upgrade", "--built-in", "--driver-policy", write("policy.yaml", "gpus: [{mig: sometimes}]"))
    assert code == 2
    assert "--driver-policy: policy file " in err
