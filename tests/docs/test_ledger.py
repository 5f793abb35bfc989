# SPDX-License-Identifier: Apache-2.0
"""No documented command is left out: a test runs it, or the ledger says why none can."""

import pytest

from .commands import ROOT, Command, commands
from .ledger import NOT_RUN, RUN_BY, STEPS, places, run_by, steps


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_command_is_run_by_one_test_or_has_a_reason_not_to_be(step: Command) -> None:
    found = places(step)
    assert len(found) == 1, f"{step}: {step.text!r} is in {len(found)} entries of tests/docs/ledger.py: {found}"


@pytest.mark.parametrize("module", RUN_BY)
def test_the_test_that_is_named_runs_what_is_its_own(module: str) -> None:
    assert run_by(module)
    assert "run_by(__name__)" in (ROOT / f"tests/docs/{module}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("begin", NOT_RUN)
def test_a_reason_is_given_for_nothing_that_is_no_longer_shown(begin: str) -> None:
    assert [step for step in STEPS if places(step) == [begin]]


def test_what_is_left_to_ci_is_run_by_it() -> None:
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert {"make lint", "make test"} <= set(lines)


def test_a_command_that_nobody_runs_is_noticed() -> None:
    (command,) = commands("```sh\nmake demo && docker compose up\n```\n", "page.md")
    assert [places(step) for step in steps(command)] == [["test_generated"], []]
