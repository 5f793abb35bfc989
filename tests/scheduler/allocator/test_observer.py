# SPDX-License-Identifier: Apache-2.0
"""What a search reports to an observer."""

import pytest

from dra_driver.kube.resource import Device, DeviceRequirements, DeviceTaint, ResourceClaim
from dra_driver.scheduler.allocator import Check, DeviceRefusal, NodeOutcome, Recorder, Slot, allocate
from dra_driver.scheduler.allocator.capacity import CapacityRefusal
from dra_driver.scheduler.allocator.selectors import UnmetSelector

from .build import DRIVER, NODE, claim, cluster, gpu, held, holding, match, quantities, shared, slice_of, wants

TAINT = DeviceTaint("k", "NoSchedule")
X = Slot(0, "x")


def observe(where: list[object], *claims: ResourceClaim) -> tuple[NodeOutcome, Recorder]:
    recorder = Recorder()
    return allocate(cluster(*where), claims, NODE.name, observer=recorder), recorder


def counted(*devices: Device) -> list[object]:
    return [
        slice_of(name="0", counters={"s": {"slots": 1}}, count=2),
        slice_of(*devices, name="1", count=2),
    ]


HOLDER = holding(held("a"))


@pytest.mark.parametrize(
    ("where", "asked", "refusal"),
    [
        pytest.param([slice_of(gpu("a")), HOLDER], wants(), DeviceRefusal(X, 0, Check.IN_USE, (HOLDER,)), id="in use"),
        pytest.param(
            [slice_of(gpu("a"))],
            wants(1, "true", "false"),
            DeviceRefusal(X, 0, Check.SELECTOR, UnmetSelector(False, 1, "false")),
            id="selector",
        ),
        pytest.param(
            [slice_of(Device("a", node_name="b"), Device("z", all_nodes=True), per_device_node_selection=True)],
            wants(2),
            DeviceRefusal(X, 0, Check.NODE),
            id="node",
        ),
        pytest.param(
            [slice_of(gpu("a"))],
            wants(capacity_requests=quantities({"memory": 1})),
            DeviceRefusal(X, 0, Check.CAPACITY, CapacityRefusal("memory", "the device has no such capacity")),
            id="capacity",
        ),
        pytest.param(
            [slice_of(gpu("a", taints=(TAINT,)))], wants(), DeviceRefusal(X, 0, Check.TAINT, TAINT), id="taint"
        ),
        pytest.param(
            counted(gpu("a", takes={"s": {"slots": 2}})),
            wants(),
            DeviceRefusal(X, 0, Check.COUNTERS, (("s", "slots"),)),
            id="counters",
        ),
        pytest.param(
            counted(gpu("a", takes={"s": {"slots": 1}}, taints=(TAINT,))),
            wants(),
            DeviceRefusal(X, 0, Check.TAINT, TAINT),
            id="a taint that keeps counters",
        ),
    ],
)
def test_refusal_names_the_check_and_its_detail(
    where: list[object], asked: DeviceRequirements, refusal: DeviceRefusal
) -> None:
    outcome, recorder = observe(where, claim(x=asked))
    assert outcome.kind == "unavailable"
    assert refusal in recorder.refusals


def test_refusal_names_only_the_counters_that_do_not_suffice() -> None:
    device = gpu("a", takes={"s": {"slots": 2}, "t": {"slots": 2, "queues": 2}})
    sets = {"s": {"slots": 1}, "t": {"slots": 2, "queues": 1}}
    where: list[object] = [slice_of(name="0", counters=sets, count=2), slice_of(device, name="1", count=2)]
    _, recorder = observe(where, claim(x=wants()))
    (refusal,) = recorder.refusals
    assert refusal == DeviceRefusal(X, 0, Check.COUNTERS, (("s", "slots"), ("t", "queues")))


def test_constraint_and_its_device_are_named() -> None:
    devices = [gpu("a", attributes={"x": 1}), gpu("b", attributes={"x": 2})]
    outcome, recorder = observe([slice_of(*devices)], claim(match("x"), x=wants(2)))
    assert outcome.kind == "unavailable"
    assert DeviceRefusal(X, 1, Check.CONSTRAINT, 0) in recorder.refusals


def test_room_on_a_shared_device_is_reported_with_the_remaining_capacity() -> None:
    half = wants(capacity_requests=quantities({"memory": 6}))
    _, recorder = observe([slice_of(shared("a"))], claim(x=half, y=half))
    assert recorder.refusals[-1].check is Check.CAPACITY
    assert "4 is left" in str(recorder.refusals[-1].detail)


def test_every_device_is_either_a_candidate_or_refused() -> None:
    devices = [gpu("a", taints=(TAINT,)), gpu("b"), gpu("c", attributes={"x": 1})]
    _, recorder = observe([slice_of(*devices), holding(held("b"))], claim(x=wants()))
    ((slot, count, candidates),) = recorder.wanted
    assert (slot, count, candidates) == (X, 1, (2,))
    assert {refusal.device for refusal in recorder.refusals} == {0, 1}
    assert recorder.view is not None
    assert recorder.view.name(2) == f"{DRIVER}/pool/c"


def test_picks_and_undone_picks_are_recorded_in_order() -> None:
    devices = [gpu("a"), gpu("b", attributes={"x": 1})]
    outcome, recorder = observe(
        [slice_of(*devices)],
        claim(x=wants(), y=wants(1, f"!has(device.attributes['{DRIVER}'].x)")),
    )
    assert outcome.kind == "allocated"
    y = Slot(0, "y")
    assert recorder.picked == [(X, 0), (X, 1), (y, 0)]
    assert DeviceRefusal(y, 0, Check.PICKED) in recorder.refusals


def test_pools_without_available_devices_are_recorded() -> None:
    _, recorder = observe([slice_of(gpu("a"), count=2)], claim(x=wants()))
    assert [(pool.name, pool.state.value) for pool in recorder.skipped] == [("pool", "incomplete")]


def test_observer_does_not_change_the_answer() -> None:
    devices = [gpu(f"gpu-{n}", attributes={"x": n % 3}) for n in range(6)]
    claims = [claim(match("x"), x=wants(2), y=wants(1)), claim(name="other", z=wants(3))]
    where = cluster(slice_of(*devices))
    assert allocate(where, claims, NODE.name) == allocate(where, claims, NODE.name, observer=Recorder())
