# SPDX-License-Identifier: Apache-2.0
"""A GPU that is gone stays published for a while, and says so."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dra_driver.gpu.devices import GpuDevices, describe
from dra_driver.gpu.health import Finding, LostGpus
from dra_driver.gpu.health.lost import published_gpus
from dra_driver.gpu.health.meanings import GPU_LOST as LOST
from dra_driver.gpu.inventory import Inventory, read_inventory
from dra_driver.gpu.layout import node_slices
from dra_driver.kube.resource import DeviceTaint, TaintEffect
from tests.support.nodes import make_node

WITHDRAW_AFTER = 300.0


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """GPUs 0 to 3 whole, 4 to 7 in MIG mode."""
    node = make_node(tmp_path_factory.mktemp("node"), "h100x8-mixed")
    return read_inventory(node.nvml, node.sys_root)


def without(inventory: Inventory, *indexes: int) -> Inventory:
    return replace(inventory, gpus=tuple(gpu for gpu in inventory.gpus if gpu.index not in indexes))


def update(lost: LostGpus, inventory: Inventory, now: float) -> tuple[list[str], list[tuple[str, float]]]:
    """(names of the first device of each GPU that is kept, (key, since) of the findings)."""
    gpus, findings = lost.update(describe(inventory).gpus, inventory, (), now, WITHDRAW_AFTER)
    assert {finding.gpu_uuid for finding in findings} == {gpu.key for gpu in gpus}
    assert {finding.effect for finding in findings} <= {TaintEffect.NO_SCHEDULE}
    return [gpu.devices[0].name for gpu in gpus], [(finding.key, finding.since) for finding in findings]


def test_nothing_is_missed_while_all_are_there(inventory: Inventory) -> None:
    lost = LostGpus()
    assert [update(lost, inventory, now) for now in (0, 1000)] == [([], []), ([], [])]


def test_a_gpu_that_is_gone_is_kept_and_then_withdrawn(inventory: Inventory) -> None:
    lost = LostGpus()
    update(lost, inventory, 0)
    rest = without(inventory, 2)
    assert update(lost, rest, 10) == (["gpu-2"], [(LOST, 10)])
    assert update(lost, rest, 309) == (["gpu-2"], [(LOST, 10)])
    assert update(lost, rest, 310) == ([], [])
    assert update(lost, rest, 311) == ([], [])


def test_returned_gpu_is_no_longer_lost(inventory: Inventory) -> None:
    lost = LostGpus()
    update(lost, inventory, 0)
    update(lost, without(inventory, 2), 10)
    assert update(lost, inventory, 20) == ([], [])
    assert update(lost, without(inventory, 2), 400) == (["gpu-2"], [(LOST, 400)]), "its time begins anew"


def test_a_gpu_that_is_there_and_not_to_be_published_is_not_missed(inventory: Inventory) -> None:
    lost = LostGpus()
    update(lost, inventory, 0)
    published: Sequence[GpuDevices] = describe(inventory).gpus[1:]
    assert lost.update(published, inventory, (), 10, WITHDRAW_AFTER) == ((), ())


def test_a_gpu_that_another_driver_has_is_not_missed(inventory: Inventory) -> None:
    lost = LostGpus()
    update(lost, inventory, 0)
    address = inventory.gpus[2].pci_address
    pci = tuple(replace(one, driver="vfio-pci") if one.address == address else one for one in inventory.pci_gpus)
    assert update(lost, replace(without(inventory, 2), pci_gpus=pci), 10)[1] == []


def test_findings_of_a_lost_gpu_stay_until_the_gpu_is_withdrawn(inventory: Inventory) -> None:
    lost = LostGpus()
    update(lost, inventory, 0)
    rest = without(inventory, 2)
    uuid = inventory.gpus[2].uuid
    heard = Finding(uuid, LOST, "", TaintEffect.NO_EXECUTE, 12, "")
    other = Finding(uuid, "gpu.nvidia.com/xid", "79", TaintEffect.NO_EXECUTE, 12, "")

    def effects(findings: Sequence[Finding], now: float) -> list[TaintEffect]:
        _, said = lost.update(describe(rest).gpus, rest, findings, now, WITHDRAW_AFTER)
        return [finding.effect for finding in said]

    assert effects([], 10) == [TaintEffect.NO_SCHEDULE]
    assert effects([other], 11) == [TaintEffect.NO_SCHEDULE], "all else is said by health as long as it holds"
    assert effects([heard], 12) == effects([], 13) == [TaintEffect.NO_EXECUTE, TaintEffect.NO_SCHEDULE]
    assert effects([], 310) == []
    update(lost, inventory, 320)
    assert effects([], 330) == [TaintEffect.NO_SCHEDULE], "it is another loss"


def test_a_gpu_of_which_an_earlier_process_told_is_missed_too(inventory: Inventory) -> None:
    slices = node_slices("node-a", "uid", describe(inventory).gpus)
    tainted = [
        replace(
            one, devices=tuple(replace(device, taints=(DeviceTaint(LOST, "NoSchedule"),)) for device in one.devices)
        )
        for one in slices
    ]
    lost = LostGpus()
    lost.adopt(tainted)
    rest = without(inventory, 0, 5)
    gpus, findings = lost.update(describe(rest).gpus, rest, (), 10, WITHDRAW_AFTER)
    assert [(len(gpu.devices), gpu.overlapping) for gpu in gpus] == [(1, False), (25, True)]
    assert not any(device.taints for gpu in gpus for device in gpu.devices), "taints are put on by those who know why"
    assert [finding.since for finding in findings] == [10, 10]


def test_published_slices_are_read_back_gpu_by_gpu(inventory: Inventory) -> None:
    described = describe(inventory).gpus
    found = {gpu.key: gpu for gpu in published_gpus(node_slices("node-a", "uid", described))}
    assert {key: gpu.counter_set for key, gpu in found.items()} == {gpu.key: gpu.counter_set for gpu in described}
    for gpu in described:
        assert sorted(device.name for device in found[gpu.key].devices) == sorted(one.name for one in gpu.devices)


def test_devices_without_the_slice_of_their_counters_are_read_back(inventory: Inventory) -> None:
    slices = node_slices("node-a", "uid", describe(inventory).gpus)
    found = published_gpus(replace(slice_, shared_counters=()) for slice_ in slices)
    assert sum(len(gpu.devices) for gpu in found) == sum(len(slice_.devices) for slice_ in slices)
    assert {gpu.counter_set for gpu in found} == {None}
