# SPDX-License-Identifier: Apache-2.0
"""Spec files under fire: writers killed at any moment, several writers at once, a disk that refuses."""

import json
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.containers.cdi import SpecDirectory
from kubeletplugin.containers.cdi.spec import dumps

from .specs import CLAIM_KIND, MINIMAL, large

pytestmark = pytest.mark.node

CHECKOUT = Path(__file__).parents[4]
WRITER = """
import sys
from pathlib import Path
from tests.kubeletplugin.containers.cdi.specs import CLAIM_KIND, large
from kubeletplugin.containers.cdi import SpecDirectory
specs = SpecDirectory(Path(sys.argv[1]), CLAIM_KIND, sync=False)
print("ready", flush=True)
for count in range(int(sys.argv[2])):
    specs.write(large(f"writer-{sys.argv[3]}"), "shared")
    specs.write(large(f"writer-{sys.argv[3]}"), f"own-{sys.argv[3]}")
"""


@contextmanager
def writing(directory: Path, count: int, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that writes `count` times the spec `shared` and one of its own; killed in the end."""
    command = [sys.executable, "-c", WRITER, str(directory), str(count), name]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        yield writer
    finally:
        writer.kill()
        writer.communicate()


def visible(directory: Path) -> Iterator[str]:
    """The only device of each spec that a runtime reads now. Raises ValueError if a file is incomplete."""
    for file in sorted(directory.glob("*.json")):
        (device,) = json.loads(file.read_bytes())["devices"]
        yield device["name"]


def test_a_writer_killed_in_the_middle_of_a_file_leaves_nothing_that_a_runtime_reads(tmp_path: Path) -> None:
    half = len(dumps(large("writer-a"))) // 2
    specs = SpecDirectory(tmp_path, CLAIM_KIND)
    dying = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n" + WRITER
    done = subprocess.run(
        [sys.executable, "-B", "-c", dying, str(tmp_path), "1", "a"],
        check=False,
        cwd=CHECKOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (half, half)),
        capture_output=True,
    )
    assert done.returncode == -signal.SIGXFSZ
    (leftover,) = tmp_path.iterdir()
    assert leftover.stat().st_size == half
    assert leftover.suffix not in (".json", ".yaml")
    assert specs.identifiers() == []
    assert specs.remove_leftovers() == 1
    assert list(tmp_path.iterdir()) == []


def test_writers_killed_at_any_moment_never_show_a_partial_spec(tmp_path: Path) -> None:
    specs = SpecDirectory(tmp_path, CLAIM_KIND)
    specs.write(large("before"), "shared")
    for turn in range(10):
        with writing(tmp_path, 1_000_000, "a") as writer:
            for _ in range(turn + 1):  # each turn watches a little longer before it kills
                assert set(visible(tmp_path)) <= {"before", "writer-a"}
        assert writer.returncode == -signal.SIGKILL
        assert len(list(visible(tmp_path))) in (1, 2)
    specs.remove_leftovers()
    assert {file.suffix for file in tmp_path.iterdir()} == {".json"}


def test_concurrent_writers_of_one_spec_each_write_a_whole_one(tmp_path: Path) -> None:
    with writing(tmp_path, 40, "a") as first, writing(tmp_path, 40, "b") as second:
        while first.poll() is None or second.poll() is None:
            assert set(visible(tmp_path)) <= {"writer-a", "writer-b"}
        assert [first.returncode, second.returncode] == [0, 0]
    assert SpecDirectory(tmp_path, CLAIM_KIND).identifiers() == ["own-a", "own-b", "shared"]
    assert list(visible(tmp_path))[:2] == ["writer-a", "writer-b"]
    assert len(list(tmp_path.iterdir())) == 3


def test_threads_share_a_directory_that_none_of_them_made_before(tmp_path: Path) -> None:
    specs = SpecDirectory(tmp_path / "run/cdi", CLAIM_KIND, sync=False)
    together = threading.Barrier(8)

    def write(name: str) -> None:
        together.wait()
        specs.write(large(name), name)

    threads = [threading.Thread(target=write, args=(f"t{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert specs.identifiers() == [f"t{index}" for index in range(8)]


def test_a_disk_that_refuses_leaves_the_old_spec_and_nothing_else(tmp_path: Path) -> None:
    specs = SpecDirectory(tmp_path, CLAIM_KIND)
    old = replace(MINIMAL, kind=CLAIM_KIND)
    file = specs.write(old, "shared")
    # Python ignores SIGXFSZ, so the write fails with EFBIG
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=f"File too large: '{file}'"):
            specs.write(large("new"), "shared")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == dumps(old)


def test_the_reader_of_these_tests_would_notice_a_partial_spec(tmp_path: Path) -> None:
    (tmp_path / "partial.json").write_bytes(dumps(large("a"))[:5000])
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        list(visible(tmp_path))
