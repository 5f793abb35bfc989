# SPDX-License-Identifier: Apache-2.0
"""What the API server holds, told by a watch and by answers, which may come in any order."""

import threading
from typing import Any

import pytest

from controller.node.writer import StoredSlices
from dra_driver.kube.resource import ObjectMeta, ResourcePool, ResourceSlice
from dra_driver.kube.resource.codec import V1

JSON = dict[str, Any]


def a_slice(version: int, name: str = "a") -> JSON:
    return {
        "metadata": {"name": name, "uid": "uid", "resourceVersion": str(version)},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        },
    }


@pytest.fixture
def changed() -> threading.Event:
    return threading.Event()


@pytest.fixture
def stored(changed: threading.Event) -> StoredSlices:
    """Slices `a` and `b` at version 4."""
    found = StoredSlices(V1, changed.set)
    found.replace([a_slice(4), a_slice(4, "b")])
    changed.clear()
    return found


def version(stored: StoredSlices, name: str = "a") -> str | None:
    one = stored.by_name().get(name)
    return None if one is None else one.metadata.resource_version


def test_a_list_and_a_change_by_somebody_else_wake(stored: StoredSlices, changed: threading.Event) -> None:
    assert stored.listed.is_set()
    stored.event("MODIFIED", a_slice(5))
    assert version(stored) == "5"
    assert changed.is_set()
    changed.clear()
    stored.event("DELETED", a_slice(6))
    assert version(stored) is None
    assert changed.is_set()


def test_slice_that_cannot_be_read_has_no_content_and_hides_no_other(
    stored: StoredSlices, caplog: pytest.LogCaptureFixture
) -> None:
    stored.replace([{**a_slice(5), "spec": "text"}, a_slice(4, "b")])
    without_content = ResourceSlice(ObjectMeta("a", uid="uid", resource_version="5"), "", ResourcePool("", 0, 0))
    assert stored.by_name()["a"] == without_content
    assert version(stored, "b") == "4"
    assert "slice a cannot be read: it will be replaced" in caplog.text


@pytest.mark.parametrize("early", [True, False])
def test_the_event_of_an_own_write_wakes_nobody_before_or_after_its_answer(
    stored: StoredSlices, changed: threading.Event, early: bool
) -> None:
    with stored.writing("a"):
        if early:
            stored.event("MODIFIED", a_slice(5))
        stored.wrote(a_slice(5))
    stored.event("MODIFIED", a_slice(5))
    assert version(stored) == "5"
    assert not changed.is_set()


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
def test_a_change_that_overtakes_the_answer_is_kept_and_wakes(
    stored: StoredSlices, changed: threading.Event, kind: str
) -> None:
    with stored.writing("a"):
        stored.event("MODIFIED", a_slice(5))
        stored.event(kind, a_slice(6))
        stored.wrote(a_slice(5))
    assert version(stored) == ("6" if kind == "MODIFIED" else None)
    assert changed.is_set()


def test_a_write_without_an_answer_is_found_out_by_its_event(stored: StoredSlices, changed: threading.Event) -> None:
    with stored.writing("a"):
        stored.event("MODIFIED", a_slice(5))
    assert version(stored) == "5"
    assert changed.is_set()


def test_other_slices_change_while_one_is_written(stored: StoredSlices, changed: threading.Event) -> None:
    with stored.writing("a"):
        stored.event("MODIFIED", a_slice(5, "b"))
        assert changed.is_set()
        stored.wrote(a_slice(6))
    assert (version(stored), version(stored, "b")) == ("6", "5")


def test_a_slice_that_cannot_be_read_hides_no_other_and_has_no_content(stored: StoredSlices) -> None:
    broken = a_slice(7)
    del broken["spec"]["pool"]
    stored.replace([broken, a_slice(8, "b")])
    assert (version(stored), version(stored, "b")) == ("7", "8")
    assert stored.by_name()["a"].pool.resource_slice_count == 0


def test_an_own_deletion_wakes_nobody(stored: StoredSlices, changed: threading.Event) -> None:
    with stored.writing("a"):
        stored.event("DELETED", a_slice(5))
        stored.deleted("a")
    assert version(stored) is None
    assert not changed.is_set()
