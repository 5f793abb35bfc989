# SPDX-License-Identifier: Apache-2.0
"""The field that somebody changed is named."""

from dataclasses import replace

import pytest

from controller.node.reconcile import describe_difference
from dra_driver.kube.resource import (
    CounterConsumption,
    Device,
    DeviceCapacity,
    DeviceTaint,
    ObjectMeta,
    OwnerReference,
    Quantity,
    ResourcePool,
    ResourceSlice,
)
from dra_driver.kube.resource.codec import V1, V1BETA1

OWNER = OwnerReference("v1", "Node", "node-a", "uid", controller=True)
TAINT = DeviceTaint("a.b/c", "NoSchedule", "1")
DEVICE = Device(
    "gpu-3",
    {"model": "H100"},
    {"memory": DeviceCapacity(Quantity.parse("80Gi"))},
    (CounterConsumption("set", {"slices": Quantity.of(7)}),),
    taints=(TAINT,),
)
SLICE = ResourceSlice(
    ObjectMeta("one", owner_references=(OWNER,)),
    "gpu.nvidia.com",
    ResourcePool("node-a", 4, 1),
    node_name="node-a",
    devices=(Device("gpu-0"), DEVICE),
)


def with_device(**changes: object) -> ResourceSlice:
    return replace(SLICE, devices=(SLICE.devices[0], replace(DEVICE, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (
            with_device(attributes={"model": "A30"}),
            'devices[gpu-3].attributes[model].string (sent "H100", stored "A30")',
        ),
        (
            with_device(attributes={"model": "H100", "rack": 4}),
            'devices[gpu-3].attributes[rack] (sent nothing, stored {"int":4})',
        ),
        (
            with_device(capacity={}),
            'devices[gpu-3].capacity (sent {"memory":{"value":"80Gi"}}, stored nothing)',
        ),
        (
            with_device(taints=(replace(TAINT, value="2"),)),
            'devices[gpu-3].taints[a.b/c].value (sent "1", stored "2")',
        ),
        (
            with_device(consumes_counters=(CounterConsumption("set", {"slices": Quantity.of(1)}),)),
            'devices[gpu-3].consumesCounters[set].counters[slices].value (sent "7", stored "1")',
        ),
        (replace(SLICE, devices=SLICE.devices[1:]), 'devices[gpu-0] (sent {"name":"gpu-0"}, stored nothing)'),
        (replace(SLICE, pool=replace(SLICE.pool, generation=9)), "pool.generation (sent 4, stored 9)"),
    ],
)
def test_the_first_field_is_named_with_both_values(stored: ResourceSlice, text: str) -> None:
    assert describe_difference(SLICE, stored, V1) == f"spec.{text}"


def test_the_path_is_that_of_the_version() -> None:
    text = describe_difference(SLICE, with_device(attributes={"model": "A30"}), V1BETA1)
    assert text.startswith("spec.devices[gpu-3].basic.attributes[model].string ")


def test_owners_count_and_long_values_are_cut_and_more_is_counted() -> None:
    other = replace(OWNER, uid="other")
    stored = replace(with_device(attributes={}), metadata=ObjectMeta("one", owner_references=(OWNER, other)))
    text = describe_difference(SLICE, stored, V1)
    assert text.startswith('metadata.ownerReferences[other] (sent nothing, stored {"apiVersion":')
    assert text.endswith("…), and 1 more")


def test_metadata_set_by_the_server_is_no_difference() -> None:
    meta = replace(SLICE.metadata, uid="uid", resource_version="7", labels={"a": "b"}, creation_timestamp="now")
    assert describe_difference(SLICE, replace(SLICE, metadata=meta), V1) == ""
