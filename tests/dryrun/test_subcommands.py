# SPDX-License-Identifier: Apache-2.0
"""Subcommands whose modules are imported when they are looked up."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.dryrun.subcommands import Entry, Subcommands

COMMAND = """
import click, gc
collected = gc.isenabled()

@click.command()
def asked() -> None: ...
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subcommands]:
    """A table with a module that exists, and with one that fails."""
    (tmp_path / "subcommand_asked.py").write_text(COMMAND)
    (tmp_path / "subcommand_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Subcommands({"asked": Entry("subcommand_asked", "Ask."), "broken": Entry("subcommand_broken", "Fail.")})
    sys.modules.pop("subcommand_asked", None)


def test_names_are_known_without_loading(modules: Subcommands) -> None:
    assert list(modules) == ["asked", "broken"]
    assert "asked" in modules
    assert "other" not in modules
    assert "subcommand_asked" not in sys.modules


def test_subcommand_has_the_summary_of_the_table(modules: Subcommands) -> None:
    assert modules["asked"].short_help == "Ask."
    assert modules.get("other") is None


def test_garbage_is_collected_again_after_loading(modules: Subcommands) -> None:
    assert modules["asked"]
    assert not sys.modules["subcommand_asked"].collected
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError, match="division"):
        modules["broken"]
    assert gc.isenabled()
