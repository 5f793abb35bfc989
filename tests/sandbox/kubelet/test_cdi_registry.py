# SPDX-License-Identifier: Apache-2.0
"""Which device a qualified name means, over several files."""

import json
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet.cdi import CdiError, inject, scan


def write(path: Path, *devices: str, env: str = "", kind: str = "example.com/gpu", version: str = "0.5.0") -> None:
    """A spec whose devices set DEVICE to the file's name, and which sets `env` for all."""
    path.parent.mkdir(exist_ok=True)
    spec = {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": d, "containerEdits": {"env": [f"DEVICE={path.name}/{d}"]}} for d in devices],
    }
    path.write_text(json.dumps(spec | ({"containerEdits": {"env": [env]}} if env else {})))


def injected(folder: Path, *names: str) -> tuple[str, ...]:
    """The variables that these devices set."""
    return inject(scan(folder), [f"example.com/gpu={name}" for name in names]).env


def test_devices_of_a_kind_may_be_in_several_files(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0")
    write(tmp_path / "b.json", "1")
    assert injected(tmp_path, "0", "1") == ("DEVICE=a.json/0", "DEVICE=b.json/1")


def test_the_same_device_twice_in_a_directory_belongs_to_nobody(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0", "1")
    write(tmp_path / "b.json", "0")
    assert injected(tmp_path, "1") == ("DEVICE=a.json/1",)
    with pytest.raises(CdiError, match=r"unresolvable CDI devices example\.com/gpu=0$"):
        injected(tmp_path, "0", "1")
    conflict = f'conflicting device "example.com/gpu=0" (specs "{tmp_path}/a.json", "{tmp_path}/b.json")'
    assert scan(tmp_path).errors == (conflict,)


def test_all_unknown_names_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0")
    with pytest.raises(CdiError) as caught:
        injected(tmp_path, "7", "0", "8", "7")
    assert str(caught.value) == "unresolvable CDI devices example.com/gpu=7, example.com/gpu=8"


def test_the_edits_of_a_whole_spec_apply_once_and_before_those_of_its_devices(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0", "1", env="COMMON=a")
    write(tmp_path / "b.json", "2", env="COMMON=b")
    assert injected(tmp_path, "0", "2", "1", "0") == (
        "COMMON=a",
        "DEVICE=a.json/0",
        "COMMON=b",
        "DEVICE=b.json/2",
        "DEVICE=a.json/1",
    )


def test_only_json_directly_in_the_directory_count(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0")
    for name in ("b.json.tmp", "spec.123.tmp", "c.JSON", "deep/d.json"):
        (tmp_path / "deep").mkdir(exist_ok=True)
        write(tmp_path / name, "1")
    assert injected(tmp_path, "0") == ("DEVICE=a.json/0",)
    with pytest.raises(CdiError):
        injected(tmp_path, "1")


def test_a_broken_file_takes_only_its_own_devices_away(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0")
    write(tmp_path / "b.json", "1", version="9.9.9")
    (tmp_path / "c.json").write_bytes(b"\xff\xfe")
    assert injected(tmp_path, "0") == ("DEVICE=a.json/0",)
    assert [error.partition(": ")[0] for error in scan(tmp_path).errors] == [
        f'failed to load CDI Spec "{tmp_path}/{name}"' for name in ("b.json", "c.json")
    ]


def test_a_directory_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert dict(scan(tmp_path / "nowhere").devices) == {}
