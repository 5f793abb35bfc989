# SPDX-License-Identifier: Apache-2.0
"""Stores of marks: what was written is read again, in the formats that other versions of the driver write."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.fabric_marks import FabricMark, FabricMarks, FabricTrouble, FabricTroubles, SeenManager
from dra_driver.gpu.functions import PciFunction
from dra_driver.gpu.marks import MarkStore
from dra_driver.gpu.mig import MigDevice
from dra_driver.gpu.nvml import Placement
from dra_driver.gpu.ownership import MigMarks, VgpuMarks
from dra_driver.gpu.passthrough import VfioMark, VfioMarks
from dra_driver.gpu.vgpus import VgpuPlace

UUID, OTHER_UUID = "GPU-0f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e00", "GPU-1f3c1a52-6f0e-4d6a-9c7e-6b7d2a9f1e00"
MDEV = "b0e0d5b2-0000-4000-8000-00000000000a"
ADDRESS, OTHER_ADDRESS = "0000:41:00.0", "0000:c1:00.0"

INSTANCE = MigDevice(UUID, 19, Placement(0, 1))
VGPU = VgpuPlace(UUID, "0000:41:00.5", 1104)
TAKEN = VfioMark(ADDRESS, UUID, (PciFunction(ADDRESS, "nvidia"),), True)
PARTITION = FabricMark(2, (1, 2), (UUID, OTHER_UUID))


@dataclass(frozen=True)
class Case:
    """A store, a mark with its key and its file, and marks with other keys, in the order in which they are read."""

    store: Callable[[Path], MarkStore[Any, Any]]
    key: Any
    mark: Any
    file: str
    content: str
    others: tuple[Any, ...]


CASES = {
    "instance": Case(
        MigMarks,
        INSTANCE,
        INSTANCE,
        f"{UUID}_19_0_1",
        "",
        (
            replace(INSTANCE, placement=Placement(0, 2)),
            replace(INSTANCE, placement=Placement(1, 1)),
            replace(INSTANCE, gpu_uuid=OTHER_UUID),
        ),
    ),
    "vgpu": Case(VgpuMarks, VGPU, VGPU, f"{UUID}_0000:41:00.5_1104_", "", (replace(VGPU, gpu_uuid=OTHER_UUID),)),
    "mediated-device": Case(
        VgpuMarks,
        replace(VGPU, mdev=MDEV),
        replace(VGPU, mdev=MDEV),
        f"{UUID}_0000:41:00.5_1104_{MDEV}",
        "",
        (replace(VGPU, gpu_uuid=OTHER_UUID, mdev=MDEV),),
    ),
    "taken": Case(
        VfioMarks,
        ADDRESS,
        TAKEN,
        f"{ADDRESS}.json",
        '{"address": "0000:41:00.0", "functions": [{"address": "0000:41:00.0", "driver": "nvidia", "override": ""}],'
        f' "persistence": true, "stuck": "", "gpu": "{UUID}"}}',
        (replace(TAKEN, address=OTHER_ADDRESS),),
    ),
    "partition": Case(
        FabricMarks,
        2,
        PARTITION,
        "2.json",
        f'{{"partition": 2, "modules": [1, 2], "gpus": ["{UUID}", "{OTHER_UUID}"], "found": false}}',
        (replace(PARTITION, partition=3), replace(PARTITION, partition=10)),
    ),
    "trouble": Case(
        FabricTroubles,
        2,
        FabricTrouble(2, (UUID,), 1.5),
        "2.error",
        f'{{"gpus": ["{UUID}"], "since": 1.5}}',
        (FabricTrouble(10, (UUID,), 1.5),),
    ),
}
WITH_VALUE = [name for name, case in CASES.items() if case.content]


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_store_without_folder_is_empty(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path / "marks")
    assert store.all() == ()
    assert not store.has(case.key)
    assert store.get(case.key) is None
    assert store.version() == 0
    store.clear(case.key)
    store.forget()


def test_mark_is_read_as_it_was_written_until_it_is_cleared(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path / "marks")
    for mark in reversed((case.mark, *case.others)):
        store.set(mark)
    assert store.get(case.key) == case.mark
    assert store.has(case.key)
    assert store.all() == (case.mark, *case.others)
    store.clear(case.key)
    assert store.get(case.key) is None
    assert not store.has(case.key)
    assert store.all() == case.others


def test_file_of_a_mark_has_the_format_of_other_versions(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    store.set(case.mark)
    assert {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()} == {case.file: case.content}
    store.clear(case.key)
    (tmp_path / case.file).write_text(case.content)
    assert store.get(case.key) == case.mark
    assert store.all() == (case.mark,)


def test_version_changes_when_a_mark_is_written_or_removed(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    os.utime(tmp_path, (1, 1))
    before = store.version()
    store.set(case.mark)
    assert store.version() != before
    os.utime(tmp_path, (1, 1))
    store.clear(case.key)
    assert store.version() != before


def test_other_files_are_ignored(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    for name in ("nonsense", "lock", "manager", f"{case.file}.new", f".{case.file}.0badcafe.aside", "GPU-0_x_0_1"):
        (tmp_path / name).write_text("nonsense")
    assert store.all() == ()
    store.forget()
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("name", WITH_VALUE)
@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "\0"])
def test_damaged_mark_is_there_until_it_is_written_again(name: str, content: str, tmp_path: Path) -> None:
    case = CASES[name]
    store = case.store(tmp_path)
    for mark in case.others:
        store.set(mark)
    (tmp_path / case.file).write_text(content)
    assert store.has(case.key)
    assert store.get(case.key) is None
    assert store.all() == case.others
    store.set(case.mark)
    assert store.get(case.key) == case.mark


@pytest.mark.parametrize("name", WITH_VALUE)
def test_directory_with_the_name_of_a_mark_is_unreadable(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    store = case.store(tmp_path)
    (tmp_path / case.file / "content").mkdir(parents=True)
    assert store.has(case.key)
    assert store.get(case.key) is None
    store.forget()
    assert not store.has(case.key)


@pytest.mark.parametrize(("name", "file"), [("taken", f"{OTHER_ADDRESS}.json"), ("partition", "7.json")])
def test_mark_under_the_name_of_another_one_is_not_read(name: str, file: str, tmp_path: Path) -> None:
    case = CASES[name]
    (tmp_path / file).write_text(case.content)
    assert case.store(tmp_path).all() == ()


def test_forgetting_removes_all_marks(case: Case, tmp_path: Path) -> None:
    store = case.store(tmp_path)
    for mark in (case.mark, *case.others):
        store.set(mark)
    if case.content:
        (tmp_path / case.file).write_text("damaged")
    store.forget()
    assert store.all() == ()
    assert not store.has(case.key)


def test_forgetting_partitions_removes_reports_and_fabric_manager(tmp_path: Path) -> None:
    marks = FabricMarks(tmp_path)
    marks.set(PARTITION)
    marks.troubles.set(FabricTrouble(2, (UUID,), 1.5))
    marks.see(SeenManager("socket", (2,)))
    marks.forget()
    assert list(tmp_path.iterdir()) == []
