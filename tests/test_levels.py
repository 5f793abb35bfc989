# SPDX-License-Identifier: Apache-2.0
"""A unit test that starts a process or opens a socket fails, and each test has one level."""

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.levels import inside_of_the_process, is_file_of_another_level, level_of


def bind() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))


def bind_in_thread() -> None:
    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()


def run_program() -> None:
    subprocess.run(["true"], check=True)


@pytest.mark.parametrize(
    ("act", "event"),
    [(bind, r"socket\.bind"), (bind_in_thread, r"socket\.bind"), (run_program, r"subprocess\.Popen")],
)
def test_unit_test_that_leaves_its_process_fails(
    act: Callable[[], None], event: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(pytest.fail.Exception, match=event), inside_of_the_process(request.node):
        act()


@pytest.mark.node
def test_node_test_may_open_a_socket(request: pytest.FixtureRequest) -> None:
    with inside_of_the_process(request.node):
        bind()


def test_test_with_two_levels_is_an_error(request: pytest.FixtureRequest) -> None:
    assert level_of(request.node) == "unit"
    request.node.add_marker("cluster")
    with pytest.raises(pytest.UsageError, match="several levels: cluster, unit"):
        level_of(request.node)


def test_files_that_a_run_of_unit_tests_leaves_out_have_no_unit_test(request: pytest.FixtureRequest) -> None:
    files = {item.path for item in request.session.items if item.get_closest_marker("unit") is not None}
    assert not any(map(is_file_of_another_level, files))


@pytest.mark.parametrize(
    ("file", "expected"),
    [("docs/test_commands.py", True), ("test_release.py", True), ("test_levels.py", False), ("conftest.py", False)],
)
def test_text_of_a_file_tells_whether_all_its_tests_are_of_another_level(file: str, expected: bool) -> None:
    assert is_file_of_another_level(Path(__file__).parent / file) is expected
