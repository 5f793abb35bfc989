# SPDX-License-Identifier: Apache-2.0
"""Which devices are picked: order, combinations, alternatives, All, several claims, limits."""

import pytest

from dra_driver.kube.resource import DeviceClass, DeviceConstraint, ObjectMeta
from dra_driver.scheduler.allocator import ErrorKind, Recorder, allocate

from .build import (
    ANY_CLASS,
    DRIVER,
    NODE,
    Requests,
    ask,
    claim,
    cluster,
    distinct,
    gpu,
    held,
    holding,
    match,
    picked,
    slice_of,
    wants,
    wants_all,
)

RED, BLUE = {"attributes": {"color": "red"}}, {"attributes": {"color": "blue"}}
BROKEN = "device.attributes['gpu.example.com'].missing == 'x'"


def of_color(color: str) -> str:
    return f"device.attributes['{DRIVER}'].color == '{color}'"


FOUR = slice_of(gpu("a", **RED), gpu("b", **BLUE), gpu("c", **RED), gpu("d", **BLUE))


@pytest.mark.parametrize(
    ("requests", "answer"),
    [
        pytest.param({"x": wants()}, "x=a", id="the first device that is free"),
        pytest.param({"x": wants(3)}, "x=a x=b x=c", id="devices in the order of the slice"),
        pytest.param({"x": wants(), "y": wants(2)}, "x=a y=b y=c", id="requests in the order of the claim"),
        pytest.param({"x": wants(5)}, "unavailable", id="more than there are"),
        pytest.param({"x": wants(1, of_color("blue"))}, "x=b", id="selectors"),
        pytest.param({"x": wants(2), "y": wants(2, of_color("red"))}, "x=b x=d y=a y=c", id="backtracking"),
        pytest.param({"x": [wants(5), wants(2)]}, "x/b=a x/b=b", id="the first alternative that can be had"),
        pytest.param(
            {"x": [wants(2, of_color("red")), wants(1)], "y": wants(2, of_color("red"))},
            "x/b=b y=a y=c",
            id="the next alternative when a later request needs it",
        ),
        pytest.param({"x": wants_all(of_color("red"))}, "x=a x=c", id="all that match"),
        pytest.param({"x": wants_all(of_color("green"))}, "unavailable", id="all needs at least one"),
        pytest.param({"x": wants(), "y": wants_all()}, "unavailable", id="all means those picked before, too"),
        pytest.param({"x": wants_all(of_color("blue")), "y": wants(2)}, "x=b x=d y=a y=c", id="what All leaves"),
    ],
)
def test_first_solution_in_order_is_used(requests: Requests, answer: str) -> None:
    assert picked(ask(FOUR, claim(**requests))) == answer


def test_pools_are_searched_by_driver_and_name_and_slices_by_name() -> None:
    slices = [
        slice_of(gpu("last"), driver="z.example.com", name="1"),
        slice_of(gpu("third"), pool="p2", name="3"),
        slice_of(gpu("second"), pool="p1", name="slice-2", count=2),
        slice_of(gpu("first"), pool="p1", name="slice-10", count=2),
    ]
    assert picked(ask(slices, claim(x=wants(4)))) == "x=first x=second x=third x=last"


def test_pools_with_binding_conditions_come_last() -> None:
    slices = [
        slice_of(gpu("bound", binding_conditions=("attached",)), pool="a", name="1"),
        slice_of(gpu("free"), pool="b", name="2"),
    ]
    assert picked(ask(slices, claim(x=wants(2)))) == "x=free x=bound"


def test_later_claim_makes_an_earlier_one_choose_again() -> None:
    first, second = claim(x=wants()), claim(name="second", y=wants(2, of_color("red")))
    assert picked(ask(FOUR, first, second)) == "x=b | y=a y=c"


def test_claim_without_requests_needs_nothing() -> None:
    outcome = ask(FOUR, claim(), claim(x=wants()))
    assert picked(outcome) == " | x=a"


@pytest.mark.parametrize(
    ("requests", "answer"),
    [
        pytest.param({"x": wants(33)}, ErrorKind.TOO_MANY_DEVICES, id="too many at once"),
        pytest.param({"x": wants(20), "y": wants(13)}, ErrorKind.TOO_MANY_DEVICES, id="too many in sum"),
        pytest.param({"x": [wants(30), wants(2)], "y": wants(4)}, "6", id="alternatives count with the smallest"),
        pytest.param({"x": wants(32)}, "32", id="as many as allowed"),
    ],
)
def test_claim_is_given_at_most_32_devices(requests: Requests, answer: str) -> None:
    outcome = ask(slice_of(*[gpu(f"gpu-{n:02}") for n in range(40)]), claim(**requests))
    found = picked(outcome)
    assert answer == (found if outcome.kind == "error" else str(len(found.split())))


def test_limit_counts_for_each_claim() -> None:
    devices = [gpu(f"gpu-{n:02}") for n in range(60)]
    outcome = ask(slice_of(*devices), claim(x=wants(30)), claim(name="other", x=wants(30)))
    assert outcome.kind == "allocated"


def test_claim_with_too_many_devices_makes_an_earlier_claim_choose_again() -> None:
    last = claim(name="last", x=[wants(20), wants(1)], y=wants(13))
    outcome = ask(slice_of(*[gpu(f"gpu-{n:02}") for n in range(20)]), claim(x=wants()), last)
    assert picked(outcome).endswith("y=gpu-14")


@pytest.mark.parametrize(
    ("requests", "answer"),
    [
        pytest.param({"x": wants(1, BROKEN)}, ErrorKind.CEL_RUNTIME, id="an attribute that is missing"),
        pytest.param({"x": wants(1, "device.driver ==")}, ErrorKind.CEL_COMPILE, id="no expression"),
        pytest.param({"x": wants(1, "false", BROKEN)}, "unavailable", id="hidden behind a false selector"),
        pytest.param({"x": wants(5), "y": wants(1, BROKEN)}, "unavailable", id="hidden behind a request without luck"),
        pytest.param({"x": wants(4), "y": wants(1, BROKEN)}, "unavailable", id="hidden behind devices in use"),
        pytest.param({"x": [wants(1, BROKEN), wants()]}, ErrorKind.CEL_RUNTIME, id="no next alternative"),
        pytest.param({"x": wants(5), "y": wants_all(BROKEN)}, ErrorKind.CEL_RUNTIME, id="All looks at once"),
        pytest.param({"x": wants(device_class="none")}, ErrorKind.CLASS_NOT_FOUND, id="no such class"),
        pytest.param({"x": [wants(), wants(device_class="none")]}, ErrorKind.CLASS_NOT_FOUND, id="not even as second"),
    ],
)
def test_error_of_a_device_ends_the_search_when_the_device_is_tried(requests: Requests, answer: str) -> None:
    outcome = ask(FOUR, claim(**requests))
    assert picked(outcome) == answer
    assert outcome.fatal == (outcome.kind == "error")


def test_devices_in_use_are_not_tried() -> None:
    where = cluster(slice_of(gpu("a"), gpu("b", **RED)), holding(held("a")))
    assert picked(ask(where, claim(x=wants(1, of_color("red"))))) == "x=b"


def test_selectors_of_the_class_come_first() -> None:
    strict = DeviceClass(ObjectMeta(name="any"), ("false",))
    assert picked(ask([FOUR, strict], claim(x=wants(1, BROKEN)))) == "unavailable"


@pytest.mark.parametrize(
    ("constraint", "requests", "answer"),
    [
        pytest.param(match("color"), {"x": wants(2)}, "x=a x=c", id="match within a request"),
        pytest.param(match("color"), {"x": wants(3)}, "unavailable", id="match without enough alike"),
        pytest.param(match("color", "x"), {"x": wants(2), "y": wants()}, "x=a x=c y=b", id="match of named requests"),
        pytest.param(match("size"), {"x": wants()}, "unavailable", id="no such attribute, not even alone"),
        pytest.param(distinct("color"), {"x": wants(), "y": wants()}, "x=a y=b", id="distinct"),
        pytest.param(distinct("color"), {"x": wants(), "y": wants(), "z": wants()}, "unavailable", id="too many"),
        pytest.param(match("color", "x/b"), {"x": [wants(3), wants(2)]}, "x/a=a x/a=b x/a=c", id="one alternative"),
        pytest.param(match("color", "x"), {"x": [wants(3), wants(2)]}, "x/b=a x/b=c", id="all alternatives"),
        pytest.param(match("color"), {"x": wants_all()}, ErrorKind.ALL_CONSTRAINT, id="All must fit"),
    ],
)
def test_constraints_hold_for_the_devices_together(
    constraint: DeviceConstraint, requests: Requests, answer: str
) -> None:
    assert picked(ask(FOUR, claim(constraint, **requests))) == answer


def test_admin_access_sees_devices_in_use_but_not_those_of_its_own_claim() -> None:
    where = cluster(slice_of(gpu("a"), gpu("b")), holding(held("a")))
    admin = wants(admin_access=True)
    assert picked(ask(where, claim(x=admin, y=admin))) == "x=a y=b"
    assert picked(ask(where, claim(x=admin), claim(name="other", y=admin))) == "x=a | y=a"


def test_device_picked_with_admin_access_is_picked_for_ordinary_requests() -> None:
    admin = claim(x=wants(admin_access=True))
    assert picked(ask(slice_of(gpu("a")), admin, claim(name="other", y=wants()))) == "unavailable"
    assert picked(ask(slice_of(gpu("a")), claim(name="other", y=wants()), admin)) == "y=a | x=a"


def test_device_allocated_with_admin_access_is_not_in_use() -> None:
    assert picked(ask([slice_of(gpu("a")), holding(held("a", admin_access=True))], claim(x=wants()))) == "x=a"


def test_equal_devices_are_not_tried_in_every_combination() -> None:
    devices = [gpu(f"gpu-{n:02}") for n in range(32)]
    claims = [claim(name=f"claim-{n}", x=wants(11)) for n in range(3)]
    outcome = allocate(cluster(slice_of(*devices), ANY_CLASS), claims, NODE.name, limit=100)
    assert outcome.kind == "unavailable"


def test_search_can_be_limited() -> None:
    recorder = Recorder()  # whoever watches sees every combination
    claims = [claim(name=f"claim-{n}", x=wants(11)) for n in range(3)]
    where = cluster(slice_of(*[gpu(f"gpu-{n:02}") for n in range(32)]))
    outcome = allocate(where, claims, NODE.name, observer=recorder, limit=1000)
    assert (outcome.error_kind, outcome.fatal) == (ErrorKind.SEARCH_LIMIT, False)


def test_hundreds_of_devices_can_be_picked_for_one_pod() -> None:
    devices = [gpu(f"gpu-{n:04}") for n in range(1280)]
    claims = [claim(name=f"claim-{n}", x=wants(32)) for n in range(40)]
    assert ask(slice_of(*devices), *claims).kind == "allocated"


def test_unknown_node_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        allocate(cluster(FOUR), [claim(x=wants())], "nowhere")


def divided(count: int) -> list[object]:
    """GPUs that are allocated whole or as two halves."""
    devices, counters = [], {}
    for index in range(count):
        counters[f"gpu-{index}"] = {"parts": 2}
        devices += [gpu(f"half-{index}-{half}", takes={f"gpu-{index}": {"parts": 1}}) for half in range(2)]
        devices.append(gpu(f"whole-{index}", takes={f"gpu-{index}": {"parts": 2}}, attributes={"whole": True}))
    return [slice_of(name="counters", count=2, counters=counters), slice_of(*devices, name="devices", count=2)]


@pytest.mark.parametrize(("count", "kind"), [(16, "allocated"), (17, "unavailable")])
def test_claims_that_want_more_than_there_is_together_are_refused_without_a_search(count: int, kind: str) -> None:
    claims = [claim(name=f"c{index}", x=wants()) for index in range(count)]
    assert allocate(cluster(*divided(8)), claims, NODE.name, limit=None if count < 17 else 2).kind == kind


@pytest.mark.parametrize(("halves", "kind"), [(2, "allocated"), (3, "unavailable")])
def test_claims_that_take_more_of_the_counters_than_there_is_are_refused_without_a_search(
    halves: int, kind: str
) -> None:
    whole = wants(1, f"has(device.attributes['{DRIVER}'].whole)")
    claims = [claim(name=f"c{index}", x=whole if index < 7 else wants()) for index in range(7 + halves)]
    outcome = allocate(cluster(*divided(8)), claims, NODE.name, limit=None if kind == "allocated" else 2)
    assert outcome.kind == kind


def test_devices_without_counters_count_besides_those_with_counters() -> None:
    plain = [gpu("plain-0"), gpu("plain-1", takes={"gpu-0": {}})]
    devices = [gpu(f"half-{half}", takes={"gpu-0": {"parts": 1}}) for half in range(2)]
    slices = [
        slice_of(name="counters", count=2, counters={"gpu-0": {"parts": 2}}),
        slice_of(*plain, *devices, name="devices", count=2),
    ]
    claims = [claim(name=f"c{index}", x=wants()) for index in range(4)]
    assert allocate(cluster(*slices), claims, NODE.name).kind == "allocated"
