# SPDX-License-Identifier: Apache-2.0
"""Agreement with Kubernetes on the golden scenarios, one test a category."""

import subprocess
import sys
from pathlib import Path

import pytest

import tests.golden.allocation
from tests.golden.allocation.scenario import judge
from tests.golden.refresh import refresh_scenarios
from tests.golden.stored import StoredScenario, categories, category_scenarios, stored_scenarios

EMPTY = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: any}\nspec: {}\n"
FOLDER = Path(tests.golden.allocation.__file__).parent
NEWER = FOLDER.with_name("allocation-1.37")
"""Scenarios of 1.37: those of its categories in which all answers agree."""


@pytest.mark.parametrize(
    ("folder", "category"),
    [(folder, category) for folder in (FOLDER, NEWER) for category in categories(folder)],
    ids=lambda part: part.name if isinstance(part, Path) else part,
)
def test_scenarios_have_the_answers_of_kubernetes(folder: Path, category: str) -> None:
    found = {stored.name: judge(stored) for stored in category_scenarios(folder, category)}
    assert found
    assert not {name: differences for name, differences in found.items() if differences}


@pytest.mark.node
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


def test_refreshed_category_file_has_the_texts_of_the_source(tmp_path: Path) -> None:
    texts = {
        "last": "# comment\nkind: Any\n",
        "first": " kind: Any\n\n---\n\n# no end of line",
        "more": "kind: Any\n\n\n",
    }
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "basics").mkdir(parents=True)
    for name, text in texts.items():
        (source / "basics" / f"{name}.yaml").write_text(text)
        (source / "basics" / f"{name}.expect.json").write_text('{\n "nodes": {}\n}')
    assert refresh_scenarios(source, target) == len(texts)
    answer = '{\n "nodes": {}\n}'
    expected = [StoredScenario("basics", name, text, answer) for name, text in sorted(texts.items())]
    assert list(stored_scenarios(target)) == expected


def test_refreshed_generated_cluster_has_the_objects_and_comments_of_the_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "basics").mkdir(parents=True)
    (source / "basics" / "gen-01.yaml").write_text("# feature-gates: A=true\nkind: Any\n---\nkind: Other\nvalue: 1.5\n")
    (source / "basics" / "gen-01.expect.json").write_text('{"nodes": {}}\n')
    refresh_scenarios(source, target)
    (stored,) = stored_scenarios(target)
    assert stored.cluster == '# feature-gates: A=true\n--- {"kind": "Any"}\n--- {"kind": "Other", "value": 1.5}\n'
    assert stored.documents() == [{"kind": "Any"}, {"kind": "Other", "value": 1.5}]
