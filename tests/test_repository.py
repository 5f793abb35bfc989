# SPDX-License-Identifier: Apache-2.0
"""The files that contributors and their tools read: issue forms, workflows, hooks and the check of commit subjects."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yaml"))
SCHEMAS = {
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.github-issue-forms": [
        path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"
    ],
    "vendor.github-workflows": WORKFLOWS,
}
SUBJECTS = ROOT / ".ci/check-subjects"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_for_github_match_their_schema(schema: str) -> None:
    import check_jsonschema  # takes long

    done = CliRunner().invoke(check_jsonschema.main, ["--builtin-schema", schema, *map(str, SCHEMAS[schema])])
    assert done.exit_code == 0, done.output


def test_zizmor_finds_nothing_in_the_workflows() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    command = [str(zizmor), "--offline", "--persona", "pedantic", "--no-progress", str(GITHUB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_target_of_a_workflow_exists(path: Path) -> None:
    targets = set(re.findall(r"\bmake (?:--silent )?([\w-]+)", path.read_text(encoding="utf-8"))) - {"version)"}
    known = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert targets
    assert targets - known == set()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_script_of_a_workflow_is_valid_bash(path: Path) -> None:
    for name, job in load(path)["jobs"].items():
        scripts = [step["run"] for step in job["steps"] if "run" in step]
        done = subprocess.run(["bash", "-n", "-c", "\n".join(scripts)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.mark.parametrize("form", ["defect.yml", "hardware.yml"])
def test_a_form_asks_for_the_two_outputs_that_most_questions_follow_from(form: str) -> None:
    text = (GITHUB / "ISSUE_TEMPLATE" / form).read_text(encoding="utf-8")
    assert "dra-dryrun snapshot --anonymise -o json" in text
    assert "dra-kubeletplugin check -o json" in text


def test_every_hook_is_a_program_of_the_checkout() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        program = hook["entry"].split()[0]
        installed = (
            Path(sys.executable).with_name(Path(program).name) if program.startswith(".venv") else ROOT / program
        )
        assert shutil.which(installed), f"{hook['id']}: {program}"


def subject_errors(message: str, folder: Path) -> str:
    """What the hook commit-msg prints about a message; empty if it accepts it."""
    (folder / "message").write_text(message, encoding="utf-8")
    command = [str(SUBJECTS), "--message", str(folder / "message")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) == (done.stderr == "")
    return done.stderr


@pytest.mark.parametrize(
    "message",
    ["lint: find misspelled drivers\n\nA longer text: why\n", "# a comment of Git\n\ntests/docs: move a page\n"],
)
def test_subject_with_a_part_is_accepted(message: str, tmp_path: Path) -> None:
    assert subject_errors(message, tmp_path) == ""


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("find misspelled drivers\n", "no part before a colon"),
        (f"lint: {'x' * 67}\n", "longer than 72 characters (73)"),
        ("fixup! lint: find misspelled drivers\n", "squash this commit"),
    ],
)
def test_wrong_subject_is_refused_with_the_reason(message: str, error: str, tmp_path: Path) -> None:
    assert error in subject_errors(message, tmp_path)


def test_subjects_of_a_range_are_checked(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        names = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
        subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    git("init")
    for subject in ("docs: first", "docs: second", "without a part"):
        git("commit", "--allow-empty", "-m", subject)

    def check(commits: str) -> int:
        return subprocess.run(
            [SUBJECTS, commits], cwd=tmp_path, capture_output=True, check=False, timeout=60
        ).returncode

    assert check("HEAD~2..HEAD~1") == 0
    assert check("HEAD~1..HEAD") == 1
