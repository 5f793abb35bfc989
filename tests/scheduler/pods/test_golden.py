# SPDX-License-Identifier: Apache-2.0
"""Agreement with Kubernetes on whole pods and quotas, one test a category."""

from pathlib import Path

import pytest

import tests.golden.scheduling
from tests.golden.scheduling.scenario import disagreements, load
from tests.golden.stored import categories, category_scenarios

FOLDER = Path(tests.golden.scheduling.__file__).parent


@pytest.mark.parametrize("category", categories(FOLDER))
def test_scenarios_have_the_answers_of_kubernetes(category: str) -> None:
    found = {stored.name: list(disagreements(load(stored))) for stored in category_scenarios(FOLDER, category)}
    assert found
    assert not {name: differences for name, differences in found.items() if differences}
