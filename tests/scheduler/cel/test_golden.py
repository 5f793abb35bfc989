# SPDX-License-Identifier: Apache-2.0
"""Every answer of Kubernetes in tests/golden/cel is ours, too."""

from pathlib import Path

import pytest

from tests import golden
from tests.golden.cel.vectors import changed_vectors, differences, vectors

FOLDER = Path(golden.__file__ or "").parent / "cel"
NEWER = "1.37"
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_those_of_kubernetes(part: int) -> None:
    chosen = list(vectors(FOLDER))[part::PARTS]
    assert len(chosen) > 700
    disagreements = [f"{vector}: {found[0]}" for vector in chosen if (found := differences(vector))]
    assert disagreements == []


def test_answers_of_a_newer_release_are_those_of_kubernetes() -> None:
    """All answers that differ from those of the oldest release, and every fourth of the others."""
    changed = changed_vectors(FOLDER, NEWER)
    newer = list(vectors(FOLDER, NEWER))
    chosen = {vector.id: vector for vector in (*newer[::4], *(vector for vector in newer if vector.id in changed))}
    assert len(chosen) > 900
    disagreements = [f"{vector}: {found[0]}" for vector in chosen.values() if (found := differences(vector))]
    assert disagreements == []
