# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.golden.scheduling [DIR]`: how often whole pods and quotas agree with Kubernetes.

DIR is a folder of scenarios in one of the forms of ../stored.py, by default this one. Prints the agreement per category
and every disagreement; exits with 1 unless all scenarios agree.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from ..agreement import Judged, run
from ..stored import stored_scenarios
from .scenario import disagreements, load


def judged(folder: Path) -> Iterator[Judged]:
    """Every scenario. One that cannot be read is a disagreement like others."""
    for stored in stored_scenarios(folder):
        try:
            found = list(disagreements(load(stored)))
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        yield stored.category, stored.name, found


if __name__ == "__main__":
    sys.exit(run("scheduling", Path(__file__).parent, judged))
