# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.allocation [DIR]`: how often the allocator agrees with Kubernetes.

DIR is a folder of scenarios in one of the forms of ../stored.py, by default this one. Prints the agreement per category
and every disagreement; exits with 1 unless all scenarios agree.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from ..agreement import Judged, run
from ..stored import stored_scenarios
from .scenario import judge


def judged(folder: Path) -> Iterator[Judged]:
    """Every scenario."""
    for stored in stored_scenarios(folder):
        yield stored.category, stored.name, judge(stored)


if __name__ == "__main__":
    sys.exit(run("allocation", Path(__file__).parent, judged))
