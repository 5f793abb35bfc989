# SPDX-License-Identifier: Apache-2.0
"""The rules by which dcgm-exporter 4.8.2 attributes metrics to pods (KUBERNETES_ENABLE_DRA), restated, and our slices.

It reads ResourceSlices of v1beta1 and kubelet's list of devices by container. A metric belongs to the GPU with a UUID;
those of single MIG devices (by GPU instance) are never attributed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.gpu.devices import describe
from dra_driver.gpu.facts import Inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.gpu.policy import GpuRule, NodePolicy
from dra_driver.gpu.simulated.board import boards
from dra_driver.kube.resource import AllocatedDevice, ResourceSlice
from dra_driver.kube.resource.codec import V1BETA1, encode_slice
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.names import DRIVER_NAME
from tests.support.allocating import NodeClaims
from tests.support.nodes import board_inventory, mig_instances

NODE = "node-a"
Attributed = tuple[str, str, str]
"""A container, the MIG profile and the UUID of its MIG device; both empty for a whole GPU."""


@dataclass(frozen=True)
class Known:
    """What the exporter keeps of a device: the UUID of its GPU, and of a MIG device its profile and UUID."""

    gpu_uuid: str
    profile: str = ""
    mig_uuid: str = ""


def known(slices: Iterable[Mapping[str, Any]]) -> dict[str, Known]:
    """pool/device -> what the exporter keeps."""
    return {
        f"{one['spec']['pool']['name']}/{device['name']}": found
        for one in slices
        if one["spec"]["driver"] == DRIVER_NAME
        for device in one["spec"].get("devices", ())
        if (found := _known({name: value.get("string", "") for name, value in device["basic"]["attributes"].items()}))
    }


def _known(attributes: Mapping[str, str]) -> Known | None:
    if attributes.get("type") == "gpu" and attributes.get("uuid"):
        return Known(attributes["uuid"])
    if attributes.get("type") == "mig" and attributes.get("parentUUID"):
        return Known(attributes["parentUUID"], attributes.get("profile", ""), attributes.get("uuid", ""))
    return None


def attributed(
    devices: Mapping[str, Known], containers: Mapping[str, Iterable[AllocatedDevice]]
) -> dict[str, list[Attributed]]:
    """UUID of a GPU -> its containers. Of several devices of one GPU in a container, only the first counts."""
    found: dict[str, list[Attributed]] = {}
    for container, results in containers.items():
        for result in results:
            device = devices.get(f"{result.pool}/{result.device}")
            if result.driver == DRIVER_NAME and device is not None:
                already = found.setdefault(device.gpu_uuid, [])
                if container not in [name for name, _, _ in already]:
                    already.append((container, device.profile, device.mig_uuid))
    return found


def published() -> tuple[Inventory, list[ResourceSlice]]:
    """A node with two whole GPUs (the first also for virtual machines, the second shared), one with a static MIG device
    and one whose MIG devices are created for claims.
    """
    board = boards()["H100-SXM5-80GB"]
    inventory = board_inventory(board, 4, mig=True)
    profile = next(one for one in board.profiles if one.info.name == "3g.40gb")
    gpus = [
        replace(gpu, mig_mode=board_inventory(board, 1).gpus[0].mig_mode) if gpu.index < 2 else gpu
        for gpu in inventory.gpus
    ]
    gpus[2] = replace(gpus[2], mig_instances=mig_instances(gpus[2], [(profile, profile.placements[0])]))
    inventory = replace(inventory, gpus=tuple(gpus))
    policy = NodePolicy((GpuRule(indexes=(0,), passthrough=True), GpuRule(indexes=(1,), shares=4)))
    return inventory, list(node_slices(NODE, "uid", describe(inventory, policy).gpus, SliceFeatures()))


def stored(slices: Iterable[ResourceSlice]) -> Iterator[dict[str, Any]]:
    """The slices as the API server serves them to the exporter."""
    return (encode_slice(one, V1BETA1) for one in slices)


def test_every_device_that_has_metrics_is_known_to_the_exporter() -> None:
    _, slices = published()
    found = known(stored(slices))
    types = {f"{NODE}/{device.name}": str(device.attributes["type"]) for one in slices for device in one.devices}
    assert set(types.values()) == {"gpu", "mig", "vfio"}
    assert found.keys() == {name for name, kind in types.items() if kind != "vfio"}


def test_pods_appear_at_the_gpus_of_their_devices() -> None:
    inventory, slices = published()
    uuids = [gpu.uuid for gpu in inventory.gpus]
    claims = NodeClaims(slices)

    def given(*selectors: str) -> AllocatedDevice:
        result = claims.allocate(*(f"device.attributes['{DRIVER_NAME}'].{one}" for one in selectors))
        assert result is not None
        return result

    static = given("type == 'mig'", "profile == '3g.40gb'", f"parentUUID == '{uuids[2]}'")
    small = ("type == 'mig'", "profile == '1g.10gb'", f"parentUUID == '{uuids[3]}'")
    containers = {
        "whole": [given(f"uuid == '{uuids[0]}'")],
        "share": [given(f"uuid == '{uuids[1]}'")],
        "other-share": [given(f"uuid == '{uuids[1]}'")],
        "static": [static],
        "dynamic": [given(*small)],
        "two-dynamic": [given(*small), given(*small)],
        "foreign": [replace(given(*small), driver="other.example.com")],
    }
    (instance,) = inventory.gpus[2].mig_instances
    assert attributed(known(stored(slices)), containers) == {
        uuids[0]: [("whole", "", "")],
        uuids[1]: [("share", "", ""), ("other-share", "", "")],
        uuids[2]: [("static", "3g.40gb", instance.uuid)],
        uuids[3]: [("dynamic", "1g.10gb", ""), ("two-dynamic", "1g.10gb", "")],
    }
