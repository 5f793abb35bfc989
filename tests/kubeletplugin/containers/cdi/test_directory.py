# SPDX-License-Identifier: Apache-2.0
"""Spec files: named, whole, readable by others, and nobody else's business touched."""

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import ContainerEdits, SpecDirectory, SpecError
from kubeletplugin.containers.cdi.spec import CdiDevice, dumps

from .specs import CLAIM_KIND, MINIMAL

UID = "9f53c0e5-9f54-647d-a53c-73174df363ba"
SPEC = replace(MINIMAL, kind=CLAIM_KIND)
OTHER = replace(SPEC, devices=(CdiDevice("gpu1", ContainerEdits(env=("A=1",))),))


@pytest.fixture
def specs(tmp_path: Path) -> SpecDirectory:
    return SpecDirectory(tmp_path / "run/cdi", CLAIM_KIND)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def names(specs: SpecDirectory) -> list[str]:
    return sorted(entry.name for entry in specs.path.iterdir())


def test_a_spec_is_written_read_replaced_and_removed(specs: SpecDirectory) -> None:
    assert specs.devices(UID) == set()
    file = specs.write(SPEC, UID)
    assert file.read_bytes() == dumps(SPEC)
    assert names(specs) == [f"k8s.gpu.nvidia.com-claim_{UID}.json"]
    specs.write(OTHER, UID)
    assert specs.devices(UID) == {"gpu1"}
    assert names(specs) == [f"k8s.gpu.nvidia.com-claim_{UID}.json"]
    assert specs.remove(UID)
    assert names(specs) == []


def test_a_spec_without_identifier_is_named_after_its_kind(specs: SpecDirectory) -> None:
    assert specs.write(SPEC).name == "k8s.gpu.nvidia.com-claim.json"
    assert specs.identifiers() == []
    assert specs.devices() == {"gpu0"}


def test_removing_twice_is_the_same_as_once(specs: SpecDirectory) -> None:
    assert not specs.remove(UID), "the directory is not even there"
    specs.write(SPEC, UID)
    assert [specs.remove(UID), specs.remove(UID)] == [True, False]


def test_spec_is_readable_for_all_users_with_any_umask(specs: SpecDirectory, umask: None) -> None:
    file = specs.write(SPEC, UID)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(specs.path.stat().st_mode) == 0o755


def test_a_directory_that_was_wiped_is_made_again(specs: SpecDirectory) -> None:
    specs.write(SPEC, UID).unlink()
    specs.path.rmdir()
    specs.write(SPEC, UID)
    assert specs.identifiers() == [UID]


def test_a_spec_that_a_runtime_would_refuse_is_not_written(specs: SpecDirectory) -> None:
    with pytest.raises(SpecError, match=r"claim_x\.json: device gpu0 has no edits"):
        specs.write(replace(SPEC, devices=(CdiDevice("gpu0", ContainerEdits()),)), "x")
    assert not specs.path.exists()


@pytest.mark.parametrize("identifier", ["../x", "a/b", "-a", ".", "a b", "é"])
def test_an_identifier_cannot_lead_out_of_the_directory(specs: SpecDirectory, identifier: str) -> None:
    for act in (specs.devices, specs.remove, specs.file):
        with pytest.raises(ValueError, match="cannot identify a CDI spec"):
            act(identifier)


def test_only_specs_of_this_kind_are_listed_and_foreign_files_stay(specs: SpecDirectory) -> None:
    specs.write(SPEC, "b")
    specs.write(SPEC, "a")
    foreign = [
        "nvidia.yaml",
        "k8s.gpu.nvidia.com-claim_c.yaml",
        "k8s.gpu.nvidia.com-claimed_d.json",
        "k8s.gpu.nvidia.com-claim_.json",
        "k8s.gpu.nvidia.com-driver.json",
        ".k8s.gpu.nvidia.com-driver.json.1.tmp",
        "spec.1.tmp",
    ]
    for name in foreign:
        (specs.path / name).write_text("not ours")
    assert specs.identifiers() == ["a", "b"]
    assert specs.remove_leftovers() == 0
    assert [specs.remove(identifier) for identifier in specs.identifiers()] == [True, True]
    assert names(specs) == sorted(foreign)


@pytest.mark.parametrize(
    ("name", "is_of_this_kind"),
    [
        (f"k8s.gpu.nvidia.com-claim_{UID}.yaml", True),
        ("k8s.gpu.nvidia.com-claim_other.yaml", True),
        ("k8s.gpu.nvidia.com-claim.yaml", True),
        ("k8s.gpu.nvidia.com-claim_other.json", False),
        ("k8s.gpu.nvidia.com-claim_other.yaml.tmp", False),
        ("k8s.gpu.nvidia.com-claimed_other.yaml", False),
        ("k8s.gpu.nvidia.com-driver.yaml", False),
        ("nvidia.yaml", False),
    ],
)
def test_specs_that_another_driver_left_are_told_by_their_names(
    specs: SpecDirectory, name: str, is_of_this_kind: bool
) -> None:
    specs.write(SPEC, UID)
    (specs.path / name).write_text("not ours")
    assert specs.foreign_files() == ([specs.path / name] if is_of_this_kind else [])


def test_a_directory_that_is_missing_has_no_specs_of_anybody(specs: SpecDirectory) -> None:
    assert (specs.identifiers(), specs.foreign_files()) == ([], [])


def test_a_damaged_file_is_reported_by_name(specs: SpecDirectory) -> None:
    file = specs.write(SPEC, UID)
    for content in (dumps(SPEC)[:-9], b"\xff", b"[]", b'{"devices": [{}]}'):
        file.write_bytes(content)
        with pytest.raises(SpecError, match=f"{UID}.json: is not a CDI spec"):
            specs.devices(UID)


def test_the_error_of_a_directory_that_cannot_be_made_names_it(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="run/cdi"):
        SpecDirectory(tmp_path / "run/cdi", CLAIM_KIND).write(SPEC, UID)


def test_a_spec_can_be_written_without_waiting_for_the_disk(tmp_path: Path) -> None:
    specs = SpecDirectory(tmp_path, CLAIM_KIND, sync=False)
    assert specs.write(SPEC, UID).read_bytes() == dumps(SPEC)
