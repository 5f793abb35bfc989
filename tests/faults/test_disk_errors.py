# SPDX-License-Identifier: Apache-2.0
"""Every change of a file fails: the disk is full, breaks, or is read-only, for this change or from it on.

Half of the calls are repeated until they go well; after the others the pod is gone, and the opposite call comes.
Without FAULTS_EVERY=1 every fifteenth of these failures is tried.
"""

import errno
from pathlib import Path

import pytest

from tests.kubeletplugin.inside import MARKS

from .faultyclaim import OPPOSITE, FaultyClaim
from .points import disk_fails
from .scenarios import SCENARIOS
from .share import share

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EROFS": errno.EROFS}
EVERY_ERROR = {"a bit of everything", "a whole GPU in MIG mode"}


@pytest.mark.parametrize(("number", "name"), list(enumerate(SCENARIOS)), ids=SCENARIOS)
@pytest.mark.parametrize("verb", OPPOSITE)
def test_claim_recovers_from_a_disk_error_at_every_point(tmp_path: Path, verb: str, number: int, name: str) -> None:
    claim = FaultyClaim(tmp_path, SCENARIOS[name])
    claim.half_written_counts = False  # what cannot be removed now, the next process removes
    marks = [claim.plugin.root / name for name in MARKS]
    folders = claim.plugin.root / "claims", claim.plugin.root / "mps", claim.plugin.cdi
    with claim.points.of_files(*folders, *marks):
        faults = [
            (index, point, code, lasting)
            for index, point in enumerate(claim.points_of(verb))
            if not point.startswith(("before", "after"))
            for code in (ERRORS.values() if name in EVERY_ERROR else (errno.ENOSPC,))
            for lasting in (False, True)
        ]
        usually = 45 if SCENARIOS[name].needs_mps else 15  # with MPS each one runs programs
        for turn, (index, point, code, lasting) in enumerate(share(faults, number, usually)):
            claim.restore_state_before(verb)
            error = claim.call_with_fault(verb, index, disk_fails(code), lasting=lasting)
            after = OPPOSITE[verb] if turn % 4 in (1, 2) else verb
            claim.repeat(after, (point, index, errno.errorcode[code], lasting, error))
    claim.end()


def test_an_unprepare_that_could_not_be_noted_is_not_taken_for_a_prepared_claim(tmp_path: Path) -> None:
    """The instances are destroyed, and nothing else can be changed: a new pod must not get a spec that names them."""
    claim = FaultyClaim(tmp_path, SCENARIOS["three slices"])
    with claim.points.of_files(claim.plugin.root / "claims", claim.plugin.root / "mig"):
        claim.restore_state_before("unprepare")
        assert claim.call_with_fault("unprepare", 0, disk_fails(errno.ENOSPC), lasting=True)
        assert claim.node_state()["records"] == claim.states["prepare"]["records"]
        assert claim.node_state()["instances"] != claim.states["prepare"]["instances"]
    claim.repeat("prepare", "the disk has room again")
    claim.end()
