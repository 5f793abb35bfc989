# SPDX-License-Identifier: Apache-2.0
"""Large pages for the memory of a process."""

import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.process.large_pages import use_large_pages

pytestmark = pytest.mark.node

SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")

PROGRAM = """
import mmap, re, sys
from pathlib import Path
from dra_driver.process.large_pages import use_large_pages

STEP = int(sys.argv[1])
memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)  # as without large pages in general
for place in range(0, len(memory), STEP):
    memory[place] = 7
memory.madvise(mmap.MADV_HUGEPAGE)

def kilobytes(field):
    return int(re.search(rf"^{field}: +([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)[1])

before = kilobytes("Anonymous")
made = use_large_pages()
assert all(memory[place] == 7 for place in range(0, len(memory), STEP))
print(made, kilobytes("AnonHugePages"), kilobytes("Anonymous") - before)
"""


def run(step: int) -> tuple[int, int, int]:
    """The number of large pages that were made, KiB in large pages, and KiB by which the process has grown, if one byte
    of each `step` bytes of 32 MiB is used.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(step)], capture_output=True, text=True, check=True)
    made, large, grown = map(int, done.stdout.split())
    return made, large, grown


needs_large_pages = pytest.mark.skipif(not SIZE.exists(), reason="this kernel has no transparent huge pages")


@needs_large_pages
def test_memory_in_use_moves_to_large_pages() -> None:
    made, large, _ = run(step=4096)
    if not made:
        pytest.skip("this kernel cannot move memory to large pages (Linux 6.1 can), or has none left")
    assert large >= 2048


@needs_large_pages
def test_memory_that_is_hardly_used_does_not_grow() -> None:
    _, _, grown = run(step=1 << 20)
    assert grown < 8 << 10


def test_kernel_without_large_pages_is_left_alone(tmp_path: Path) -> None:
    assert use_large_pages(tmp_path / "hpage_pmd_size") == 0
