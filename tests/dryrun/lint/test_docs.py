# SPDX-License-Identifier: Apache-2.0
"""What is written about linting, and the examples for CI, hold."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.lint.command import lint
from dra_driver.dryrun.lint.finding import LintRule
from dra_driver.scheduler.cel import RELEASES

ROOT = Path(__file__).parents[3]
GUIDE, RULES = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("how-to/lint", "reference/lint-rules")
)
EXAMPLES = sorted((ROOT / "examples/ci").glob("*.yaml"))


def test_the_guide_lists_every_rule_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning) \| (.+) \|$", RULES, re.MULTILINE)
    assert rows == [(rule.id, rule.severity, rule.summary) for rule in LintRule]


def test_the_guide_links_to_every_example() -> None:
    links = re.findall(r"\]\(\.\./\.\./(examples/ci/[^)]+)\)", GUIDE)
    assert sorted(links) == [str(path.relative_to(ROOT)) for path in EXAMPLES]


def commands(value: Any) -> list[str]:
    """The commands in a hook or a workflow."""
    if isinstance(value, dict):
        return [one for key, item in value.items() for one in ([item] if key in ("entry", "run") else commands(item))]
    return [one for item in value for one in commands(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_for_ci_run_the_command_as_it_is(path: Path) -> None:
    found = [shlex.split(one) for one in commands(yaml.safe_load(path.read_text(encoding="utf-8")))]
    (arguments,) = (one[2:] for one in found if one[:2] == ["dra-dryrun", "lint"])
    parsed = lint.make_context("lint", arguments).params
    assert parsed["files"] == ("manifests",)
    assert parsed["built_in"]
    assert parsed["kubernetes_version"] in RELEASES


def test_the_hook_runs_for_manifests_alone() -> None:
    (repository,) = yaml.safe_load((ROOT / "examples/ci/pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (hook,) = repository["hooks"]
    assert re.search(hook["files"], "manifests/team/claim.yaml")
    assert not re.search(hook["files"], "charts/app/templates/claim.yaml")
    assert hook["pass_filenames"] is False
