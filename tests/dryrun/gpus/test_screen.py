# SPDX-License-Identifier: Apache-2.0
"""What the live view shows, and what each key of it does."""

import pathlib
from collections.abc import Iterable

import pytest
from rich.console import Console, Group

from dra_driver.dryrun.gpus.collect import used_nodes
from dra_driver.dryrun.gpus.screen import Row, ScreenView, keys_of, rows_of
from dra_driver.kube.resource.codec import decode
from dra_driver.scheduler.allocator import Features
from tests.dryrun.conftest import gpu, slice_of

from .test_collect import holding, pod

ROWS: list[Row] = [
    ("node-1/gpu-0", "used", "whole", "ns/web", "Deployment web", "2026-01-02 00:00Z", "ns/a"),
    ("node-1/gpu-1", "free", "whole", "", "", "", ""),
    ("node-2/gpu-10", "used, unhealthy", "whole", "ns/train", "Job train", "2026-01-01 00:00Z", "ns/b"),
    ("node-2/gpu-9", "partly used", "1g.10gb", "ns/book", "", "2026-01-03 00:00Z", "ns/c"),
]


def after(keys: Iterable[str], rows: list[Row] = ROWS) -> ScreenView:
    view = ScreenView(rows)
    for key in keys:
        view = view.after(key)
    return view


def names(view: ScreenView) -> list[str]:
    return [row[0] for row in view.selected]


def shown(view: ScreenView, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, record=True, file=pathlib.Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(Group(*view.lines("5 GPUs of a cluster with a very long name", height)))
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("key", "first"),
    [
        ("n", "node-1/gpu-0"),
        ("s", "node-1/gpu-1"),
        ("d", "node-2/gpu-9"),
        ("p", "node-2/gpu-9"),
        ("o", "node-1/gpu-0"),
        ("t", "node-2/gpu-10"),
    ],
)
def test_a_key_sorts_by_its_column(key: str, first: str) -> None:
    assert names(after(key))[0] == first


def test_numbers_in_names_are_sorted_by_value_and_empty_cells_come_last() -> None:
    assert names(after("n"))[-2:] == ["node-2/gpu-9", "node-2/gpu-10"]
    assert names(after("p"))[-1] == "node-1/gpu-1"


def test_a_text_selects_rows_and_keys_are_letters_of_it() -> None:
    view = after(["/", *"queue"])
    assert (view.text, view.ended, names(view)) == ("queue", False, [])
    assert names(after(["/", *"TRAIN", "\r"])) == ["node-2/gpu-10"]


def test_backspace_and_escape_take_the_text_back() -> None:
    assert after(["/", *"tra", "\x7f"]).text == "tr"
    assert len(names(after(["/", *"train", "\r", "\x1b"]))) == len(ROWS)
    assert len(names(after(["/", *"train", "\x1b"]))) == len(ROWS)


@pytest.mark.parametrize("keys", ["q", "\x03", ["/", "\x03"]])
def test_the_view_can_be_ended_at_any_time(keys: Iterable[str]) -> None:
    assert after(keys).ended


def test_arrows_move_within_the_rows() -> None:
    assert after(["\x1b[B", "j"]).first == 2
    assert after(["\x1b[6~"]).first == len(ROWS) - 1
    assert after(["j", "\x1b[A", "k"]).first == 0


def test_unknown_keys_do_nothing() -> None:
    assert after("xyz\x00") == after("")


def test_a_terminal_sends_arrows_and_letters_together() -> None:
    assert list(keys_of(b"\x1b[Bp\x1b[5~\x1b")) == ["\x1b[B", "p", "\x1b[5~", "\x1b"]


def test_the_view_has_as_many_lines_as_the_terminal() -> None:
    many = [(f"node-{number}/gpu-0", *ROWS[0][1:]) for number in range(100)]
    lines = shown(ScreenView(many), 200, 24)
    assert len(lines) == 24
    assert lines[1] == "rows 1 to 20 of 100, by GPU"
    assert lines[-1].startswith("q quit")


def test_a_long_title_takes_one_line() -> None:
    assert len(shown(ScreenView([]), 30, 24)) == 4


def test_rows_are_the_uses_of_gpus_and_the_gpus_without_a_use() -> None:
    objects = [decode(slice_of("node-1", gpu("gpu-0"), gpu("gpu-1"))), holding("node-1", "gpu-0")]
    nodes = used_nodes(objects, [pod(kind="Job", name="train")], Features())
    assert rows_of(nodes) == [
        ("node-1/gpu-0", "used", "whole", "ns/pod", "Job train", "2026-01-02 00:00Z", "ns/claim"),
        ("node-1/gpu-1", "free", "whole", "", "", "", ""),
    ]
