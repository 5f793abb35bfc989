# SPDX-License-Identifier: Apache-2.0
"""What a comparison of two commits compares, and when it fails."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .compare import Comparison, accepted_since, copy_commit, copy_working_tree, find_base, find_named, smallest

pytestmark = pytest.mark.node

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git in a new repository with the branch main."""

    def run(*arguments: str) -> str:
        settings = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *settings, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    return run


def commit(git: Git, message: str = "part: change") -> str:
    """The hash of a new, empty commit."""
    git("commit", "--quiet", "--allow-empty", "--message", message)
    return git("rev-parse", "HEAD")


def comparison(*runs: tuple[float, float]) -> Comparison:
    """A comparison with one figure in several runs."""
    made = Comparison()
    made.runs = [({"calls": before}, {"calls": after}) for before, after in runs]
    return made


def test_first_commit_has_no_base(git: Git, tmp_path: Path) -> None:
    assert find_base(tmp_path) is None
    commit(git)
    assert find_base(tmp_path) is None


def test_base_on_main_is_the_commit_before(git: Git, tmp_path: Path) -> None:
    first = commit(git)
    commit(git)
    assert find_base(tmp_path) == first


def test_base_of_a_branch_is_where_it_left_main(git: Git, tmp_path: Path) -> None:
    commit(git)
    fork = commit(git)
    git("checkout", "--quiet", "-b", "topic")
    commit(git, "part: first change of the branch")
    commit(git, "part: second change of the branch")
    git("checkout", "--quiet", "main")
    commit(git)
    git("checkout", "--quiet", "topic")
    assert find_base(tmp_path) == fork


def test_shallow_clone_of_one_commit_has_no_base(git: Git, tmp_path: Path) -> None:
    commit(git)
    commit(git)
    git("clone", "--quiet", "--depth=1", f"file://{tmp_path}", "clone")
    assert find_base(tmp_path / "clone") is None


def test_names_of_unknown_commits_are_not_found(git: Git, tmp_path: Path) -> None:
    known = commit(git)
    assert find_named(tmp_path, "main") == known
    assert find_named(tmp_path, "no-such-branch") is None
    assert find_named(tmp_path, "--all") is None


def test_working_tree_is_copied_as_it_is(git: Git, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, text in {"kept": "old", "deleted": "old", ".gitignore": "ignored\n"}.items():
        (tmp_path / name).write_text(text)
    git("add", ".")
    first = commit(git)
    (tmp_path / "kept").write_text("new")
    (tmp_path / "deleted").unlink()
    (tmp_path / "untracked").write_text("new")
    (tmp_path / "ignored").write_text("new")
    old, new = tmp_path_factory.mktemp("old"), tmp_path_factory.mktemp("new")
    copy_commit(tmp_path, first, old)
    copy_working_tree(tmp_path, new)
    assert {path.name: path.read_text() for path in old.iterdir()} == {
        "kept": "old",
        "deleted": "old",
        ".gitignore": "ignored\n",
    }
    assert {path.name: path.read_text() for path in new.iterdir()} == {
        "kept": "new",
        "untracked": "new",
        ".gitignore": "ignored\n",
    }


@pytest.mark.parametrize(
    ("runs", "grown"),
    [
        ([(1000, 1299)], []),
        ([(1000, 1301)], ["calls"]),
        ([(1000, 700)], []),
        ([(1.0, 1.5)], []),
        ([(1.0, 2.0)], ["calls"]),
        ([(0.0, 1.0)], ["calls"]),
        ([(1000, 1400), (1000, 1000), (1000, 1000)], []),
    ],
    ids=["below", "beyond", "smaller", "rounds differ", "a request more", "the first request", "one run of three"],
)
def test_figure_fails_beyond_the_limit(runs: list[tuple[float, float]], grown: list[str]) -> None:
    assert comparison(*runs).grown() == grown


def test_figure_of_one_side_is_listed_and_does_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    made = Comparison()
    made.runs = [({"old": 1.0, "both": 2.0}, {"new": 3.0, "both": 3.0})]
    made.print()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["old", "1.0", "-"], ["both", "2.0", "3.0", "1.50", "1.50", "to", "1.50"], ["new", "-", "3.0"]]
    assert made.grown() == []


def test_trailers_of_commits_accept_figures(git: Git, tmp_path: Path) -> None:
    first = commit(git, "part: change\n\nCost-accepted: before")
    commit(git, "part: change\n\nWhy.\n\nCost-accepted: GPU, prepare 1 claim: requests")
    assert accepted_since(tmp_path, first) >= {"GPU, prepare 1 claim: requests"}
    assert "before" not in accepted_since(tmp_path, first)


def test_smallest_counts_of_several_runs_are_kept() -> None:
    assert smallest({}, {"calls": 3.0}) == {"calls": 3.0}
    assert smallest({"calls": 3.0, "old": 1.0}, {"calls": 2.0, "new": 1.0}) == {"calls": 2.0, "old": 1.0, "new": 1.0}
