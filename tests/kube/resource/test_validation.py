# SPDX-License-Identifier: Apache-2.0
"""What slices the API server would refuse. Every row was also put before the validation of Kubernetes 1.36.2."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from dra_driver.kube.resource import (
    AttributeList,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceTaint,
    MalformedAttribute,
    NodeSelector,
    NodeSelectorTerm,
    ObjectMeta,
    Quantity,
    RequestPolicy,
    RequestRange,
    ResourcePool,
    ResourceSlice,
    Version,
)
from dra_driver.kube.resource.device import SliceFeatures
from dra_driver.kube.resource.validation import slice_problems

ONE = Quantity.of(1)
POOL = ResourcePool("node-a", 1, 1)
DEVICE = Device("gpu-0", attributes={"type": "gpu"}, capacity={"memory": DeviceCapacity(Quantity.parse("80Gi"))})
SLICE = ResourceSlice(ObjectMeta("a"), "gpu.nvidia.com", POOL, node_name="node-a", devices=(DEVICE,))
COUNTERS = replace(SLICE, devices=(), shared_counters=(CounterSet("c", {"memory": ONE}),))
SELECTOR = NodeSelector((NodeSelectorTerm(),))
DRAWN = CounterConsumption("c", {"memory": ONE})
TAINT = DeviceTaint("a", "NoSchedule")
VALUES = RequestPolicy(default=ONE, valid_values=(ONE,))


def with_device(**changes: object) -> ResourceSlice:
    """A slice with one device that differs in this."""
    return replace(SLICE, devices=(replace(DEVICE, **changes),))  # type: ignore[arg-type]  # rows of a table


def with_counters(**counters: Mapping[str, Quantity]) -> ResourceSlice:
    """A slice with these counter sets."""
    return replace(COUNTERS, shared_counters=tuple(CounterSet(name, counters[name]) for name in counters))


def many(count: int, device: Device = DEVICE) -> ResourceSlice:
    """A slice with this many such devices."""
    return replace(SLICE, devices=tuple(replace(device, name=f"gpu-{i}") for i in range(count)))


def share(policy: RequestPolicy | None, *, multiple: bool = True) -> ResourceSlice:
    """A slice with a device whose memory has this policy."""
    capacity = {"memory": DeviceCapacity(Quantity.of(8), policy)}
    return with_device(capacity=capacity, allow_multiple_allocations=multiple)


VALID = {
    "as it is": SLICE,
    "counters": COUNTERS,
    "nothing at all": replace(SLICE, devices=()),
    "upper case in the driver's name": replace(SLICE, driver="GPU.nvidia.com"),
    "a pool name of several parts": replace(SLICE, pool=replace(POOL, name="node-a/gpus")),
    "generation 0": replace(SLICE, pool=replace(POOL, generation=0)),
    "all nodes": replace(SLICE, node_name=None, all_nodes=True),
    "128 plain devices": many(128),
    "64 devices with taints": many(64, replace(DEVICE, taints=(TAINT,))),
    "8 counter sets": with_counters(**{f"c-{i}": {"m": ONE} for i in range(8)}),
    "32 counters": with_counters(c={f"m-{i}": ONE for i in range(32)}),
    "31 attributes and a capacity": with_device(attributes={f"a{i}": i for i in range(31)}),
    "48 attribute values": with_device(attributes={"all": AttributeList("ints", tuple(range(48)))}),
    "an attribute of 64 bytes": with_device(attributes={"a": "x" * 64}),
    "an attribute in a domain": with_device(attributes={"resource.kubernetes.io/pcieRoot": "pci0000:15"}),
    "a strict version": with_device(attributes={"a": Version("570.158.1")}),
    "two counter sets drawn on": with_device(consumes_counters=(DRAWN, replace(DRAWN, counter_set="d"))),
    "16 taints of every effect": with_device(
        taints=tuple(replace(TAINT, effect=e, value=v) for e in ("None", "NoSchedule") for v in "abcdefgh")
    ),
    "binding conditions": with_device(binding_conditions=("a", "b.c/d"), binding_failure_conditions=("e",)),
    "values for shares": share(VALUES),
    "a range for shares": share(RequestPolicy(default=ONE, valid_range=RequestRange(ONE))),
    "a partition type": replace(SLICE, partition_type_attribute="gpu.nvidia.com/profile"),
    "skipped operations": replace(SLICE, skip_node_operations=("NodePrepareResources", "NodeUnprepareResources")),
    "every operation skipped": replace(SLICE, skip_node_operations=("*", "NodePrepareResources")),
    "two compatibility groups": with_device(consumes_counters=(replace(DRAWN, compatibility_groups=("a", "b")),)),
    "devices choose nodes": replace(with_device(node_name="node-a"), node_name=None, per_device_node_selection=True),
}

INVALID: list[tuple[ResourceSlice, str]] = [
    (replace(SLICE, metadata=ObjectMeta("Node_A")), "metadata.name: 'Node_A' is not a DNS subdomain"),
    (replace(SLICE, driver="gpu_nvidia"), "spec.driver: 'gpu_nvidia' is not a DNS subdomain of at most 63 characters"),
    (replace(SLICE, pool=replace(POOL, name="a//b")), "spec.pool.name: 'a//b' is not a pool name"),
    (replace(SLICE, pool=replace(POOL, generation=-1)), "spec.pool.generation: must not be negative"),
    (replace(SLICE, pool=replace(POOL, resource_slice_count=0)), "spec.pool.resourceSliceCount: must be at least 1"),
    (replace(SLICE, node_name="Node A"), "spec.nodeName: 'Node A' is not a node's name"),
    (
        replace(SLICE, node_name=None),
        "spec: exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection must be set",
    ),
    (
        replace(SLICE, all_nodes=True),
        "spec: exactly one of nodeName, nodeSelector, allNodes and perDeviceNodeSelection must be set",
    ),
    (
        replace(SLICE, node_name=None, node_selector=NodeSelector((NodeSelectorTerm(), NodeSelectorTerm()))),
        "spec.nodeSelector: must have exactly one term, has 2",
    ),
    (
        replace(SLICE, shared_counters=COUNTERS.shared_counters),
        "spec: devices and sharedCounters exclude each other",
    ),
    (
        replace(SLICE, partition_type_attribute="profile"),
        "spec.partitionTypeAttribute: 'profile' is not a domain, a slash and an identifier",
    ),
    (
        replace(SLICE, partition_type_attribute="gpu.nvidia.com/mig/profile"),
        "spec.partitionTypeAttribute: 'gpu.nvidia.com/mig/profile' is not a domain, a slash and an identifier",
    ),
    (
        replace(SLICE, skip_node_operations=("Prepare",)),
        "spec.skipNodeOperations[0]: 'Prepare' is not NodePrepareResources, NodeUnprepareResources or *",
    ),
    (
        replace(SLICE, skip_node_operations=("NodePrepareResources",)),
        "spec.skipNodeOperations: NodePrepareResources needs NodeUnprepareResources",
    ),
    (replace(SLICE, skip_node_operations=("*", "*")), "spec.skipNodeOperations: an operation is named twice"),
    (
        with_device(consumes_counters=(replace(DRAWN, compatibility_groups=("a", "b", "c")),)),
        "spec.devices[0].consumesCounters[0].compatibilityGroups: has 3 entries, more than 2",
    ),
    (
        with_device(consumes_counters=(replace(DRAWN, compatibility_groups=("a", "a")),)),
        "spec.devices[0].consumesCounters[0].compatibilityGroups: a group is named twice",
    ),
    # counter sets
    (with_counters(**{f"c-{i}": {"m": ONE} for i in range(9)}), "spec.sharedCounters: has 9 sets, more than 8"),
    (with_counters(C={"m": ONE}), "spec.sharedCounters[0].name: 'C' is not a DNS label of at most 63 characters"),
    (
        replace(COUNTERS, shared_counters=COUNTERS.shared_counters * 2),
        "spec.sharedCounters[1].name: 'c' is used twice",
    ),
    (with_counters(c={}), "spec.sharedCounters[0].counters: must have at least one counter"),
    (
        with_counters(c={f"m-{i}": ONE for i in range(33)}),
        "spec.sharedCounters[0].counters: has 33 counters, more than 32",
    ),
    (with_counters(c={"copyEngines": ONE}), "spec.sharedCounters[0].counters[copyEngines]: is not a DNS label"),
    # devices
    (many(129), "spec.devices: has 129 devices, more than 128"),
    (many(65, replace(DEVICE, taints=(TAINT,))), "spec.devices: has 65 devices, more than 64"),
    (many(65, replace(DEVICE, consumes_counters=(DRAWN,))), "spec.devices: has 65 devices, more than 64"),
    (
        many(65, replace(DEVICE, attributes={"a": AttributeList("ints", (1,))})),
        "spec.devices: has 65 devices, more than 64",
    ),
    (replace(SLICE, devices=(DEVICE, DEVICE)), "spec.devices[1].name: 'gpu-0' is used twice"),
    (with_device(name="GPU0"), "spec.devices[0].name: 'GPU0' is not a DNS label of at most 63 characters"),
    # attributes and capacities
    (
        with_device(attributes={f"a{i}": i for i in range(32)}),
        "spec.devices[0]: has 33 attributes and capacities, more than 32",
    ),
    (
        with_device(attributes={"all": AttributeList("ints", tuple(range(49)))}),
        "spec.devices[0].attributes: has 49 values, more than 48",
    ),
    (
        with_device(attributes={"a-b": 1}),
        "spec.devices[0].attributes[a-b]: is not an identifier, optionally after a domain and a slash",
    ),
    (
        with_device(capacity={"a.b": DeviceCapacity(ONE)}),
        "spec.devices[0].capacity[a.b]: is not an identifier, optionally after a domain and a slash",
    ),
    (
        with_device(attributes={"a": "ä" * 33}),
        f"spec.devices[0].attributes[a]: is longer than 64 bytes: {'ä' * 33!r}",
    ),
    (
        with_device(attributes={"a": Version("570.158.01")}),
        "spec.devices[0].attributes[a]: '570.158.01' is not a semantic version (x.y.z)",
    ),
    (
        with_device(attributes={"a": AttributeList("versions", (Version("1.0.0"), Version("1")))}),
        "spec.devices[0].attributes[a]: '1' is not a semantic version (x.y.z)",
    ),
    (
        with_device(attributes={"a": AttributeList("ints", ())}),
        "spec.devices[0].attributes[a]: must not be an empty list",
    ),
    (
        with_device(attributes={"a": MalformedAttribute({})}),
        "spec.devices[0].attributes[a]: must have exactly one value",
    ),
    # shares
    (
        share(VALUES, multiple=False),
        "spec.devices[0].capacity[memory].requestPolicy: needs the device's allowMultipleAllocations",
    ),
    (
        share(replace(VALUES, valid_range=RequestRange(ONE))),
        "spec.devices[0].capacity[memory].requestPolicy: validValues and validRange exclude each other",
    ),
    (
        share(replace(VALUES, default=None)),
        "spec.devices[0].capacity[memory].requestPolicy.default: is required with validValues or validRange",
    ),
    # counters drawn on
    (
        with_device(consumes_counters=tuple(replace(DRAWN, counter_set=name) for name in "abc")),
        "spec.devices[0].consumesCounters: names more than 2 counter sets",
    ),
    (
        with_device(consumes_counters=(DRAWN, DRAWN)),
        "spec.devices[0].consumesCounters[1].counterSet: 'c' is used twice",
    ),
    (
        with_device(consumes_counters=(replace(DRAWN, counter_set=""),)),
        "spec.devices[0].consumesCounters[0].counterSet: '' is not a DNS label of at most 63 characters",
    ),
    (
        with_device(consumes_counters=(replace(DRAWN, counters={}),)),
        "spec.devices[0].consumesCounters[0].counters: must have at least one counter",
    ),
    (
        with_device(consumes_counters=(replace(DRAWN, counters={"M": ONE}),)),
        "spec.devices[0].consumesCounters[0].counters[M]: is not a DNS label",
    ),
    # taints
    (with_device(taints=(TAINT,) * 17), "spec.devices[0].taints: has 17 taints, more than 16"),
    (
        with_device(taints=(replace(TAINT, key="a b"),)),
        "spec.devices[0].taints[0].key: 'a b' is not the key of a label",
    ),
    (
        with_device(taints=(replace(TAINT, value="-"),)),
        "spec.devices[0].taints[0].value: '-' is not the value of a label",
    ),
    (
        with_device(taints=(replace(TAINT, effect="Evict"),)),
        "spec.devices[0].taints[0].effect: must be one of None, NoSchedule, NoExecute, not 'Evict'",
    ),
    # binding conditions
    (
        with_device(binding_conditions=("a",)),
        "spec.devices[0]: bindingConditions and bindingFailureConditions need each other",
    ),
    (
        with_device(binding_conditions=("a",), binding_failure_conditions=("a",)),
        "spec.devices[0]: a binding condition is named twice",
    ),
    (
        with_device(binding_conditions=tuple("abcde"), binding_failure_conditions=("f",)),
        "spec.devices[0].bindingConditions: has 5 entries, more than 4",
    ),
    (
        with_device(binding_conditions=("a",), binding_failure_conditions=("b c",)),
        "spec.devices[0].bindingFailureConditions: 'b c' is not formed like the key of a label",
    ),
    # nodes of single devices
    (
        with_device(node_name="node-a"),
        "spec.devices[0]: nodeName, nodeSelector and allNodes need the slice's perDeviceNodeSelection",
    ),
    (
        replace(SLICE, node_name=None, per_device_node_selection=True),
        "spec.devices[0]: exactly one of nodeName, nodeSelector and allNodes must be set",
    ),
    (
        replace(with_device(node_name="Node A"), node_name=None, per_device_node_selection=True),
        "spec.devices[0].nodeName: 'Node A' is not a node's name",
    ),
]


@pytest.mark.parametrize("what", VALID)
def test_valid_slice_has_no_violations(what: str) -> None:
    assert [str(problem) for problem in slice_problems(VALID[what])] == []


@pytest.mark.parametrize(("resource_slice", "problem"), INVALID, ids=[problem for _, problem in INVALID])
def test_each_broken_rule_is_named_once_with_its_field(resource_slice: ResourceSlice, problem: str) -> None:
    assert [str(found) for found in slice_problems(resource_slice)] == [problem]


def test_all_problems_are_reported_at_once() -> None:
    broken = replace(with_device(name="A", attributes={"a-b": 1}), driver="", node_name=None)
    assert [problem.path for problem in slice_problems(broken)] == [
        "spec.driver",
        "spec",
        "spec.devices[0].name",
        "spec.devices[0].attributes[a-b]",
    ]


# Kubernetes 1.33 and 1.34

OLDER = SliceFeatures(counters_beside_devices=True)
BESIDE = replace(with_device(consumes_counters=(DRAWN,)), shared_counters=COUNTERS.shared_counters)


def many_counters(count: int) -> dict[str, Quantity]:
    """So many counters."""
    return {f"m-{index}": ONE for index in range(count)}


def drawing(devices: int, counters: int) -> ResourceSlice:
    """A slice of so many devices that draw on so many counters each."""
    shared = CounterSet("c", many_counters(counters))
    device = replace(DEVICE, consumes_counters=(replace(DRAWN, counters=shared.counters),))
    return replace(many(devices, device), shared_counters=(shared,))


VALID_BEFORE_1_35 = {
    "counters beside devices": BESIDE,
    "9 counter sets": with_counters(**{f"c-{index}": {"m": ONE} for index in range(9)}),
    "three counter sets drawn on": replace(
        with_device(consumes_counters=tuple(replace(DRAWN, counter_set=name) for name in "abc")),
        shared_counters=tuple(CounterSet(name, {"memory": ONE}) for name in "abc"),
    ),
    "128 devices with taints": many(128, replace(DEVICE, taints=(TAINT,))),
    "4 taints": with_device(taints=tuple(replace(TAINT, value=value) for value in "abcd")),
    "32 counters, 1024 drawn": drawing(32, 32),
}
INVALID_BEFORE_1_35: list[tuple[ResourceSlice, str]] = [
    (with_counters(a=many_counters(16), b=many_counters(17)), "spec.sharedCounters: has 33 counters, more than 32"),
    (drawing(33, 32), "spec.devices: consume 1056 counters together, more than 1024"),
    (
        replace(BESIDE, shared_counters=(CounterSet("d", {"memory": ONE}),)),
        "spec.devices[0].consumesCounters[0].counterSet: 'c' is not a counter set of the slice",
    ),
    (
        replace(BESIDE, shared_counters=(CounterSet("c", {"slices": ONE}),)),
        "spec.devices[0].consumesCounters[0].counters[memory]: is not a counter of 'c'",
    ),
    (with_device(taints=(TAINT,) * 5), "spec.devices[0].taints: has 5 taints, more than 4"),
    (
        with_device(taints=(replace(TAINT, effect="None"),)),
        "spec.devices[0].taints[0].effect: must be one of NoSchedule, NoExecute, not 'None'",
    ),
]


@pytest.mark.parametrize("what", VALID_BEFORE_1_35)
def test_valid_slice_depends_on_the_release(what: str) -> None:
    older = VALID_BEFORE_1_35[what]
    assert [str(problem) for problem in slice_problems(older, OLDER)] == []
    assert bool(slice_problems(older)) == (what != "4 taints")


@pytest.mark.parametrize(("older", "problem"), INVALID_BEFORE_1_35, ids=[problem for _, problem in INVALID_BEFORE_1_35])
def test_rules_of_older_servers_are_named_too(older: ResourceSlice, problem: str) -> None:
    assert [str(found) for found in slice_problems(older, OLDER)] == [problem]


def test_taints_that_the_server_drops_break_no_rule() -> None:
    assert slice_problems(with_device(taints=(TAINT,) * 17), replace(OLDER, device_taints=False)) == []
