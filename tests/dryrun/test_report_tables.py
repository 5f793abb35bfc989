# SPDX-License-Identifier: Apache-2.0
"""The report at a terminal."""

from dataclasses import replace

import pytest
from rich.text import Text

from dra_driver.dryrun.changes import Suggestion
from dra_driver.dryrun.report import PlainTable, Report, Verbatim, print_lines, report_lines

from .reports import PROFILE, claim, every_kind, report


@pytest.fixture(scope="module")
def every() -> Report:
    return every_kind()


def printed(capsys: pytest.CaptureFixture[str], what: Report, *, wide: bool = False) -> list[str]:
    print_lines(report_lines(what, wide=wide))
    return capsys.readouterr().out.splitlines()


def test_no_line_ends_in_blanks_and_columns_are_aligned(every: Report, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, every, wide=True)
    assert [line for line in lines if line != line.rstrip()] == []
    at = next(index for index, line in enumerate(lines) if line.startswith("CLAIM") and "3g.40gb" in lines[index + 1])
    assert {line.index("3g.40gb") for line in lines[at + 1 : at + 4]} == {lines[at].index("PROFILE")}


def test_gpus_are_drawn_where_memory_slices_matter(every: Report, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, every)
    assert [line.strip() for line in lines if "GPUs of" in line] == [
        "GPUs of h100x8-mig (NVIDIA H100 80GB HBM3):",
        "GPUs of h100x8-mig, which comes closest (NVIDIA H100 80GB HBM3):",
    ]
    assert "  gpu-1           |     |     |     |     |       3g.40gb *       |" in lines
    assert "  gpu-1           |     |     |     |     |       3g.40gb a       |" in lines


def test_wide_draws_whole_gpus_too_and_gives_uuids(every: Report, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, every, wide=True)
    assert "  gpu-0           whole  * ns/whole" in lines
    assert "  gpu-1 to gpu-7  whole  free" in lines
    assert any("GPU-" in line for line in lines)


def test_a_defect_of_the_scheduler_is_told(every: Report, capsys: pytest.CaptureFixture[str]) -> None:
    first = every.answers[0]
    verdict = replace(first.verdict, defect=Suggestion("known defect of kube-scheduler 1.36: something", "h100x8"))
    lines = printed(capsys, replace(every, answers=(replace(first, verdict=verdict),)))
    assert "  known defect of kube-scheduler 1.36: something" in lines


def test_assumptions_are_told(every: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assumed = replace(every, assumptions=("that node-a is gone",))
    assert "simulating that node-a is gone" in printed(capsys, assumed)


def test_text_that_looks_like_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, report(claim("[red]x[/red]", f"{PROFILE} == '3g.40gb'"), where="[bold]here"))
    assert lines[0] == "devices of 2 nodes, from [bold]here"
    assert any(line.startswith("ns/[red]x[/red]") for line in lines)


def table_lines(table: PlainTable, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_lines([table])
    return capsys.readouterr().out.splitlines()


def test_columns_of_a_table_are_as_wide_as_their_letters(capsys: pytest.CaptureFixture[str]) -> None:
    table = PlainTable("a", "b", "c")
    table.add_row("日本", "x", Text("y"))
    assert table_lines(table, capsys) == ["A     B  C", "日本  x  y"]


def test_cells_of_a_table_are_texts_or_numbers_and_a_missing_text_is_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = PlainTable("in use", "model")
    table.add_row(0, "")
    assert table_lines(table, capsys) == ["IN USE  MODEL", "0       -"]


@pytest.mark.parametrize(
    ("columns", "headings"),
    [("60", ["NODE", "MODEL", "UUID"]), ("40", ["NODE", "UUID"]), ("30", ["NODE"])],
)
def test_optional_columns_are_left_out_in_their_order_if_the_terminal_is_narrow(
    columns: str, headings: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = PlainTable("Node", "Model", "UUID", optional=["Model", "UUID"])
    table.add_row("n" * 18, "m" * 18, "u" * 18)
    assert table_lines(table, capsys)[0].split() == headings


def test_verbatim_line_is_not_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_lines([Verbatim("word " * 20 + "\x1b[31m")])
    assert capsys.readouterr().out == "word " * 20 + "\ufffd[31m\n"
