# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.allocation [DIR]`: how often the allocator agrees with Kubernetes.

DIR is a folder of scenarios, by default this one. Prints the agreement per category and every
disagreement; exits with 1 unless all scenarios agree.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from ..agreement import Judged, run
from .scenario import judge


def judged(folder: Path) -> Iterator[Judged]:
    """Every scenario."""
    for path in sorted(folder.glob("*/*.yaml")):
        yield path.parent.name, path.stem, judge(path)


if __name__ == "__main__":
    sys.exit(run("allocation", Path(__file__).parent, judged))
