# SPDX-License-Identifier: Apache-2.0
"""Agreement with Kubernetes on whole pods and quotas, one test a category."""

from pathlib import Path

import pytest

import tests.golden.scheduling
from tests.golden.scheduling.scenario import disagreements, load

FOLDER = Path(tests.golden.scheduling.__file__).parent


@pytest.mark.parametrize("category", sorted(path.name for path in FOLDER.iterdir() if any(path.glob("*.yaml"))))
def test_scenarios_have_the_answers_of_kubernetes(category: str) -> None:
    found = {path.stem: list(disagreements(load(path))) for path in sorted((FOLDER / category).glob("*.yaml"))}
    assert found
    assert not {name: differences for name, differences in found.items() if differences}
