# SPDX-License-Identifier: Apache-2.0
"""The threat model in docs/explanation/threat-model.md names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/threat-model.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^(    )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_each_row_names_an_attack() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what")]
    assert rows
    assert not [row for row in rows if "`tests/attacks/" not in row]


def test_each_attack_is_in_the_threat_model() -> None:
    told = {file for file, _ in NAMED}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "tests/attacks").glob("test_*.py")} <= told
