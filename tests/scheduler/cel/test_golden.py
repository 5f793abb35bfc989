# SPDX-License-Identifier: Apache-2.0
"""Every answer of Kubernetes in tests/golden/cel is ours, too."""

from pathlib import Path

import pytest

from tests import golden
from tests.golden.cel.vectors import differences, vectors

FOLDER = Path(golden.__file__ or "").parent / "cel"
PARTS = 4


@pytest.mark.parametrize("release", ["1.36", "1.37"])
@pytest.mark.parametrize("part", range(PARTS))
def test_agrees_with_kubernetes(part: int, release: str) -> None:
    chosen = [vector for index, vector in enumerate(vectors(FOLDER, release)) if index % PARTS == part]
    assert len(chosen) > 700
    disagreements = [f"{vector}: {found[0]}" for vector in chosen if (found := differences(vector))]
    assert disagreements == []
