# SPDX-License-Identifier: Apache-2.0
"""NVML events of a simulated node: who registered for what gets it, once, in order."""

import threading
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import NO_INSTANCE, Event, EventSetHandle, EventType, Return
from tests.gpu.calls import make_instance, refusal
from tests.support.nodes import TestNode, make_node

XID, SINGLE, DOUBLE = EventType.XID, EventType.SINGLE_BIT_ECC, EventType.DOUBLE_BIT_ECC


@pytest.fixture
def split(tmp_path: Path) -> TestNode:
    """Eight H100 in MIG mode."""
    return make_node(tmp_path, "h100x8-mig")


def drain(node: TestNode, events: EventSetHandle) -> list[Event]:
    """What an event set has to report now."""
    return list(iter(lambda: node.nvml.wait_event(events, 0), None))


def uuid(node: TestNode, index: int) -> str:
    """The UUID of a GPU."""
    return node.nvml.uuid(node.nvml.device_by_index(index))


def test_a_set_reports_what_was_registered_and_nothing_else(split: TestNode) -> None:
    nvml = split.nvml
    first, second = nvml.device_by_index(0), nvml.device_by_index(1)
    events = nvml.event_set()
    assert nvml.register_events(first, XID | DOUBLE, events) == XID | DOUBLE
    assert nvml.register_events(second, SINGLE, events) == SINGLE
    split.node.raise_event(uuid(split, 0), XID, 79)
    split.node.raise_event(uuid(split, 0), SINGLE, 1)
    split.node.raise_event(uuid(split, 1), SINGLE, 2)
    split.node.raise_event(uuid(split, 1), XID, 48)
    split.node.raise_event(uuid(split, 2), XID, 13)
    split.node.raise_event(uuid(split, 0), DOUBLE, 3)
    assert drain(split, events) == [
        Event(first, XID, 79, NO_INSTANCE, NO_INSTANCE),
        Event(second, SINGLE, 2, NO_INSTANCE, NO_INSTANCE),
        Event(first, DOUBLE, 3, NO_INSTANCE, NO_INSTANCE),
    ]
    nvml.free_event_set(events)


def test_only_what_the_gpu_supports_is_registered(tmp_path: Path) -> None:
    ampere = make_node(tmp_path, "a30x4")
    nvml = ampere.nvml
    events = nvml.event_set()
    assert nvml.register_events(nvml.device_by_index(0), XID | EventType.FATAL_POISON, events) == XID
    assert nvml.register_events(nvml.device_by_index(1), EventType.FATAL_POISON, events) == EventType(0)
    ampere.node.raise_event(uuid(ampere, 0), EventType.FATAL_POISON, 1)
    assert drain(ampere, events) == []


@pytest.mark.parametrize("kind", EventType)
def test_newer_gpus_report_every_kind_of_event(split: TestNode, kind: EventType) -> None:
    events = split.nvml.event_set()
    gpu = split.nvml.device_by_index(0)
    assert split.nvml.register_events(gpu, kind, events) == kind
    split.node.raise_event(uuid(split, 0), kind, 1)
    assert drain(split, events) == [Event(gpu, kind, 1)]


def test_an_event_of_a_mig_device_names_its_instances(split: TestNode) -> None:
    nvml = split.nvml
    gpu = nvml.device_by_index(0)
    _, device = make_instance(nvml, gpu, 2, 4)
    events = nvml.event_set()
    nvml.register_events(gpu, XID, events)
    split.node.raise_event(nvml.uuid(device), XID, 43)
    assert drain(split, events) == [Event(gpu, XID, 43, gpu_instance=1, compute_instance=0)]


def test_every_set_gets_what_happens_after_it_was_made(split: TestNode) -> None:
    nvml = split.nvml
    gpu = nvml.device_by_index(0)
    early = nvml.event_set()
    nvml.register_events(gpu, XID, early)
    split.node.raise_event(uuid(split, 0), XID, 1)
    late = nvml.event_set()
    nvml.register_events(gpu, XID, late)
    split.node.raise_event(uuid(split, 0), XID, 2)
    assert [event.data for event in drain(split, early)] == [1, 2]
    assert [event.data for event in drain(split, late)] == [2]


def test_waiting_ends_when_something_happens(split: TestNode) -> None:
    nvml = split.nvml
    events = nvml.event_set()
    nvml.register_events(nvml.device_by_index(0), XID, events)
    happens = threading.Thread(target=split.node.raise_event, args=(uuid(split, 0), XID, 79))
    happens.start()
    event = nvml.wait_event(events, 60_000)
    happens.join()
    assert event is not None
    assert event.data == 79


def test_waiting_ends_with_the_driver(split: TestNode) -> None:
    nvml = split.nvml
    events = nvml.event_set()
    happens = threading.Thread(target=split.node.unload_driver)
    happens.start()
    assert refusal(nvml.wait_event, events, 60_000) is Return.DRIVER_NOT_LOADED
    happens.join()


def test_a_lost_gpu_cannot_be_registered(split: TestNode) -> None:
    events = split.nvml.event_set()
    gpu = split.nvml.device_by_index(0)
    split.node.lose_gpu(0)
    assert refusal(split.nvml.register_events, gpu, XID, events) is Return.GPU_IS_LOST
