# SPDX-License-Identifier: Apache-2.0
"""docs/reference/kubernetes-releases.md names what exists."""

import re
from pathlib import Path

from dra_driver.kube.releases import GATES

from .releases import SUPPORT

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def test_every_gate_is_explained_and_no_other() -> None:
    assert set(SUPPORT) == {gate for stages in GATES.values() for gate in stages}


def test_tests_and_vectors_that_verify_a_feature_exist() -> None:
    categories = {path.stem for path in GOLDEN.glob("*/*.yaml")}
    named = {name for support in SUPPORT.values() for name in re.findall(r"`([^`]+)`", support.verified_by)}
    missing = {name for name in named if name not in categories and not (ROOT / name).exists()}
    assert missing == set()
