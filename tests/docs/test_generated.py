# SPDX-License-Identifier: Apache-2.0
"""What makes a file of the repository makes the file that is there; and the demo of the README runs.

All of it in a copy of the checkout, which must be as it was afterwards. The copy's .venv is a view of the environment
that the tests run in, with the dra-sandbox of `on_path`. What a target installs, from PyPI, it installs into
environments of its own.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.onpath import on_path

from .commands import given_to
from .running import copy_checkout, environment

ENVIRONMENT = ("lib", "pyvenv.cfg")
WRITES = re.compile(r"make (docs|lock|proto)\b|python -m tests\.")
COMMANDS = sorted({" ".join(step.parts[0]) for step in given_to(__name__) if WRITES.match(step.text)})
"""Without their comments: some stand on two pages."""
COMPARED = {"make docs": "tests.docs.tables", "python -m tests.charts.golden": "tests.charts.golden"}
"""Commands with their modules. Other tests compare what they write with the files (docs/test_tables.py and
charts/test_rendering.py), so they are not run."""


class Checkout(NamedTuple):
    """A copy of the checkout."""

    folder: Path
    contents: Mapping[str, str]
    """What is in it, before any command."""
    variables: Mapping[str, str]
    """Those that its dra-sandbox needs."""
    descriptor: int
    """The file descriptor that its dra-sandbox needs."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """The copy."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("the tests do not run in a virtual environment")
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    copy_checkout(copy)
    (copy / ".venv").mkdir()
    for name in ENVIRONMENT:
        (copy / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    (copy / ".venv/.ready").touch()
    with on_path("dra-sandbox") as (programs, variables, descriptor):
        (copy / ".venv/bin").mkdir()
        for program in (*programs.iterdir(), *(Path(sys.prefix) / "bin").iterdir()):
            if not (copy / ".venv/bin" / program.name).exists():
                (copy / ".venv/bin" / program.name).symlink_to(program)
        yield Checkout(copy, dict(contents(copy)), {**environment(), **variables}, descriptor)


def contents(checkout: Path) -> Iterator[tuple[str, str]]:
    """(path, digest) of each file, those that git would ignore aside."""
    for folder, folders, files in os.walk(checkout):
        folders[:] = [name for name in folders if name not in (".venv", "build", "__pycache__")]
        for name in files:
            path = Path(folder, name)
            yield str(path.relative_to(checkout)), hashlib.sha256(path.read_bytes()).hexdigest()


def run(command: str, checkout: Checkout, **variables: str) -> str:
    """Run a command in the copy, in which it must change nothing. Return what it prints."""
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=checkout.folder,
        env={**checkout.variables, **variables},
        pass_fds=[checkout.descriptor],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(contents(checkout.folder)) ^ checkout.contents.items() == set(), f"`{command}` writes it anew"
    return done.stdout


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - set(COMPARED)))
def test_generated_files_are_up_to_date(command: str, checkout: Checkout) -> None:
    if "tests.charts" in command:
        pytest.importorskip("helm_python", reason="Helm's engine has wheels for x86-64 only")
    run(command, checkout)


@pytest.mark.parametrize("command", COMPARED)
def test_command_runs_the_module_whose_files_are_compared(command: str, checkout: Checkout) -> None:
    assert command in COMMANDS
    printed = run(command.replace("make", "make -n"), checkout) if command.startswith("make") else command
    assert printed.split()[-2:] == ["-m", COMPARED[command]]
    source = (checkout.folder / COMPARED[command].replace(".", "/")).with_suffix(".py")
    assert 'if __name__ == "__main__":' in source.read_text(encoding="utf-8")


def test_demo_shows_every_step_and_leaves_nothing(checkout: Checkout, short_path: Path) -> None:
    shown = run("make demo", checkout, DRA_SANDBOX_KEEP=str(short_path / "kept"))
    steps = ("fits  Pod mig-slices", "|    2g.20gb    |1g.10gb|1g.10gb|", '"kind": "k8s.gpu.nvidia.com/claim"')
    for text in (*steps, "killed process", "nothing is left"):
        assert text in shown
    assert (short_path / "kept/node-1/logs/kubeletplugin.log").is_file()
