# SPDX-License-Identifier: Apache-2.0
"""Agreement with Kubernetes on the golden scenarios, one test a category."""

import subprocess
import sys
from pathlib import Path

import pytest

import tests.golden.allocation
from tests.golden.allocation.scenario import judge

EMPTY = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: any}\nspec: {}\n"
FOLDER = Path(tests.golden.allocation.__file__).parent
NEWER = FOLDER.with_name("allocation-1.37")
"""Scenarios of 1.37: those of its categories in which all answers agree."""


@pytest.mark.parametrize(
    "category",
    sorted(path for folder in (FOLDER, NEWER) for path in folder.iterdir() if any(path.glob("*.yaml"))),
    ids=lambda path: path.name,
)
def test_scenarios_have_the_answers_of_kubernetes(category: Path) -> None:
    found = {path.stem: judge(path) for path in sorted(category.glob("*.yaml"))}
    assert found
    assert not {name: differences for name, differences in found.items() if differences}


def test_exception_in_a_scenario_is_a_disagreement(tmp_path: Path) -> None:
    for category, name in (("basics", "empty"), ("basics", "broken")):
        (tmp_path / category).mkdir(exist_ok=True)
        (tmp_path / category / f"{name}.yaml").write_text("kind: Nothing\n" if name == "broken" else EMPTY)
        (tmp_path / category / f"{name}.expect.json").write_text('{"nodes": {}}')
    command = [sys.executable, "-m", "tests.golden.allocation", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "basics/broken, an exception instead of an answer" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["total", "1", "of", "2"]
