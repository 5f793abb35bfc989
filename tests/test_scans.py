# SPDX-License-Identifier: Apache-2.0
"""Static scans of what ships: every finding is explained where it is, or in the page about security for all places.

checkov is too large to be installed for every test run. bandit takes long, and `make lint` checks its rules.
Both are run when they are on PATH, as by `make scan`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
PACKAGES = ("dra_driver", "controller", "kubeletplugin")
SECURITY = (ROOT / "docs/explanation/image-and-scans.md").read_text(encoding="utf-8")
MANIFESTS = ROOT / "tests/charts/golden/defaults.yaml"
NO_PASSWORDS = ("''", "'pass'")
NEEDS_BANDIT = pytest.mark.skipif(shutil.which("bandit") is None, reason="bandit is not installed")


@dataclass(frozen=True)
class Finding:
    """What bandit says of the lines `first` to `last` of a file."""

    rule: str
    text: str
    file: str
    first: int
    last: int


@pytest.fixture
def bandit(tmp_path: Path) -> list[Finding]:
    """bandit's findings."""
    output = tmp_path / "findings.json"
    command = ["bandit", "--quiet", "--recursive", "--format", "json", "--output", str(output)]
    done = subprocess.run([*command, *PACKAGES], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert output.exists(), done.stderr
    answer = json.loads(output.read_text(encoding="utf-8"))
    assert answer["errors"] == []
    assert answer["metrics"]["_totals"]["loc"] > 10_000
    return [
        Finding(one["test_id"], one["issue_text"], one["filename"], min(one["line_range"]), max(one["line_range"]))
        for one in answer["results"]
    ]


def explained(heading: str) -> set[str]:
    """The findings in the table below a heading of docs/explanation/image-and-scans.md."""
    section = SECURITY.split(f"\n### {heading}\n", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {name for cell in cells for name in re.findall(r"\b(?:B\d+|CKV\w+)\b", cell)}


def is_explained_there(finding: Finding) -> bool:
    """Whether one of its lines says why: `# noqa: S603 - …` for B603."""
    lines = (ROOT / finding.file).read_text(encoding="utf-8").splitlines()[finding.first - 1 : finding.last]
    return any(re.search(rf"# noqa: [\w, ]*\bS{finding.rule[1:]}\b", line) for line in lines)


@NEEDS_BANDIT
@pytest.mark.timeout(300)
def test_findings_of_bandit_are_those_that_are_explained(bandit: list[Finding]) -> None:
    everywhere = explained("bandit")
    passwords = {"B105", "B106", "B107"}
    open_findings = [
        one
        for one in bandit
        if not is_explained_there(one)
        and one.rule not in everywhere - passwords
        and not (one.rule in passwords and one.text.endswith(NO_PASSWORDS))
    ]
    assert open_findings == []
    assert everywhere - {finding.rule for finding in bandit} == set(), "the page explains what bandit does not find"


@NEEDS_BANDIT
def test_lint_checks_the_rules_of_bandit_but_those_that_are_explained() -> None:
    rules = set(re.findall(r"^\s+B(\d+)\t", output_of("bandit", "--help"), re.MULTILINE))
    ruff = str(Path(sys.executable).with_name("ruff"))
    settings = output_of(ruff, "check", "--show-settings", "dra_driver/__init__.py")
    enabled = settings.split("linter.rules.enabled = [", 1)[1].split("]", 1)[0]
    checked = set(re.findall(r"\(S(\d+)\)", enabled))
    assert checked
    assert {f"B{rule}" for rule in rules - checked} == explained("Rules of bandit that ruff does not have")
    assert "(PLE2502)" in enabled


def output_of(*command: str) -> str:
    """What a command prints, at the root of the repository."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_hidden_from_bandit() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert not [path for path in files if re.search(r"#\s*nosec\b", path.read_text(encoding="utf-8"))]


@pytest.mark.skipif(shutil.which("checkov") is None, reason="checkov is not installed")
def test_every_finding_of_checkov_is_explained_and_found() -> None:
    found = checkov(MANIFESTS, "kubernetes") | checkov(ROOT / "Dockerfile", "dockerfile")
    assert found == explained("checkov")


def checkov(file: Path, framework: str) -> set[str]:
    """What checkov complains about."""
    command = ["checkov", "--file", str(file), "--framework", framework, "--output", "json", "--skip-download"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert answer["summary"]["passed"] > 0
    return {one["check_id"] for one in answer["results"]["failed_checks"]}
