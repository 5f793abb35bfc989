# SPDX-License-Identifier: Apache-2.0
"""Every change of a file fails: the disk is full, breaks, or is read-only, for this change or from it on.

Half of the calls are repeated until they go well; after the others the pod is gone, and the opposite call comes.
"""

import errno
from pathlib import Path

import pytest

from .points import disk_fails
from .scenarios import SCENARIOS
from .struck import OPPOSITE, StruckClaim

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EROFS": errno.EROFS}
EVERY_ERROR = {"a bit of everything", "a whole GPU in MIG mode"}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("verb", OPPOSITE)
def test_a_failure_anywhere(tmp_path: Path, verb: str, name: str) -> None:
    claim = StruckClaim(tmp_path, SCENARIOS[name])
    claim.half_written_counts = False  # what cannot be removed now, the next process removes
    with claim.points.of_files(claim.plugin.root / "claims", claim.plugin.root / "mig", claim.plugin.cdi):
        every = claim.points_of(verb)
        points = [(index, one) for index, one in enumerate(every) if not one.startswith(("before", "after"))]
        struck = 0
        for index, point in points:
            for number in ERRORS.values() if name in EVERY_ERROR else (errno.ENOSPC,):
                for lasting in (False, True):
                    claim.ready_for(verb)
                    error = claim.strike(verb, index, disk_fails(number), lasting=lasting)
                    after = OPPOSITE[verb] if struck % 4 in (1, 2) else verb
                    claim.bring(after, (point, index, errno.errorcode[number], lasting, error))
                    struck += 1
        print(f"{len(points)} points, {struck} failures")
    claim.end()


def test_an_unprepare_that_could_not_be_noted_is_not_taken_for_a_prepared_claim(tmp_path: Path) -> None:
    """The instances are destroyed, and nothing else can be changed: a new pod must not get a spec that names them."""
    claim = StruckClaim(tmp_path, SCENARIOS["three slices"])
    with claim.points.of_files(claim.plugin.root / "claims", claim.plugin.root / "mig"):
        claim.ready_for("unprepare")
        assert claim.strike("unprepare", 0, disk_fails(errno.ENOSPC), lasting=True)
        assert claim.picture()["records"] == claim.pictures["prepare"]["records"]
        assert claim.picture()["instances"] != claim.pictures["prepare"]["instances"]
    claim.bring("prepare", "the disk has room again")
    claim.end()
