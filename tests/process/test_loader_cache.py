# SPDX-License-Identifier: Apache-2.0
"""Caches that ldconfig of this machine writes, and damaged ones."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dra_driver.process.loader_cache import library_folders

pytestmark = pytest.mark.node

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin")


def is_cuda(name: str) -> bool:
    return name.startswith("libcuda.so")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache of two folders, one with a libcuda.so.1 and one with another library."""
    if LDCONFIG is None or shutil.which("cc") is None:
        pytest.skip("needs ldconfig and a C compiler")
    for folder, soname in (("one", "libother.so.1"), ("two", "libcuda.so.1")):
        (tmp_path / folder).mkdir()
        output = tmp_path / folder / f"{soname}.580"
        subprocess.run(
            ["cc", "-shared", f"-Wl,-soname,{soname}", "-o", str(output), "-x", "c", "/dev/null"], check=True
        )
    configuration, file = tmp_path / "ld.so.conf", tmp_path / "ld.so.cache"
    configuration.write_text(f"{tmp_path}/one\n{tmp_path}/two\n")
    subprocess.run([LDCONFIG, "-C", str(file), "-f", str(configuration)], check=True, capture_output=True)
    return file


def test_folders_of_wanted_libraries_are_found(cache: Path, tmp_path: Path) -> None:
    assert library_folders(cache, is_cuda) == (f"{tmp_path}/two",)


def test_a_cache_after_one_of_the_older_format_is_read(cache: Path, tmp_path: Path) -> None:
    older = b"ld.so-1.7.0\0" + (1).to_bytes(4, "little") + bytes(12)
    older += bytes(-len(older) % 8)
    cache.write_bytes(older + cache.read_bytes())
    assert library_folders(cache, is_cuda) == (f"{tmp_path}/two",)


@pytest.mark.parametrize("length", [0, 10, 30, 60, 200])
def test_a_cache_that_is_cut_off_has_no_folders(cache: Path, length: int) -> None:
    cache.write_bytes(cache.read_bytes()[:length])
    assert library_folders(cache, is_cuda) == ()


@pytest.mark.parametrize(
    "content", [b"", b"text\n", b"ld.so-1.7.0\0" + b"\xff" * 40, b"glibc-ld.so.cache1.1" + b"\xff" * 99]
)
def test_another_file_has_no_folders(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ld.so.cache").write_bytes(content)
    assert library_folders(tmp_path / "ld.so.cache", is_cuda) == ()


def test_a_missing_cache_has_no_folders(tmp_path: Path) -> None:
    assert library_folders(tmp_path / "ld.so.cache", is_cuda) == ()
