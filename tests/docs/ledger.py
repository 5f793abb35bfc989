# SPDX-License-Identifier: Apache-2.0
"""Which test runs a command that the pages show; and of those that no test can run, why.

A line with `&&` has a step for each side of it: a step is a Command, too. test_ledger sees to it that each stands
in one place here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from .commands import COMMANDS, Command

RUN_BY: Mapping[str, str] = {
    "test_commands": r"(\.venv/bin/)?dra-(dryrun|sandbox) |helm (?!verify)|kubectl (?!exec|rollout)",
    "test_engine": r"export IMAGE=|docker (build -t|push|run) ",
    "test_generated": r"make (demo|docs|lock|proto)\b|python -m tests\.",
    "test_host": r"kind (create|load) ",
    "test_pods": r"kubectl (exec|rollout) ",
}
"""Module of this folder -> how the steps begin that it runs, as they stand or in a place made for them."""
NOT_RUN: Mapping[str, str] = {
    r"make (lint|site|test|venv)\b|\.venv/bin/pytest ": "CI runs the targets (.ci/run); a test cannot run all tests",
    r"make golden ": "it needs newer answers of Kubernetes; tests/scheduler/allocator/test_golden.py has some",
    r"make release ": "it builds the wheel and the SBOM with packages from PyPI; tests/test_release.py makes the rest",
    r"git |helm verify ": "they need a release; tests/test_release.py verifies a signed chart",
    r"docker build .*--output type=registry": "BuildKit's own; test_engine runs what the page has for Podman instead",
}
"""How the steps begin that are only checked word by word (tests.docs.checks) -> why."""


def steps(command: Command) -> Iterator[Command]:
    """The commands that are joined by `&&`; all but the last are not said to print anything."""
    texts = [text.strip() for text in command.text.split("&&")]
    for text in texts[:-1]:
        yield replace(command, text=text, output="")
    yield replace(command, text=texts[-1])


STEPS = [step for command in COMMANDS for step in steps(command)]


def places(step: Command) -> list[str]:
    """The entries that claim it: modules of RUN_BY, patterns of NOT_RUN."""
    text = step.text.replace("\\\n", " ")
    modules = [name for name, begin in RUN_BY.items() if re.match(begin, text)]
    return modules + [begin for begin in NOT_RUN if re.match(begin, text)]


def run_by(module: str) -> list[Command]:
    """The steps that a test module, named by its `__name__`, is to run."""
    return [step for step in STEPS if places(step) == [module.rpartition(".")[2]]]
