# SPDX-License-Identifier: Apache-2.0
"""What claims with MPS need of the node."""

import pytest

from kubeletplugin.features.mps.check import mps_finding

CONTROL = "/usr/bin/nvidia-cuda-mps-control"
PROGRAM = (CONTROL, CONTROL)


@pytest.mark.parametrize(
    ("found", "claims", "problem", "level"),
    [
        (PROGRAM, 0, None, "pass"),
        (None, 0, None, "fail"),
        (PROGRAM, 0, "away", "warn"),
        (PROGRAM, 1, "away", "fail"),
    ],
)
def test_mps_that_is_away_is_a_failure_where_claims_need_it(
    found: tuple[str, str] | None, claims: int, problem: str | None, level: str
) -> None:
    finding = mps_finding(found, claims, problem, "/")
    assert (finding.check, str(finding.level)) == ("mps", level)
    assert ("claims on this node need it" in finding.text) == bool(claims)
