# SPDX-License-Identifier: Apache-2.0
"""What tests of several packages share: an API server, and a client of it."""

import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dra_driver.kube.api import ApiClient

from .support.apiserver import api_server, connect
from .support.levels import inside_of_the_process, is_file_of_another_level, level_of
from .support.preloaded import one_parent

# The same examples in every run: a change is blamed for what it broke. HYPOTHESIS_PROFILE=explore finds new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Every worker, and each of the hundreds of processes that tests start, imports the same modules: without bytecode each
# one compiles them anew, which is half of such a process's time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Helm and kubectl, as a library and as programs, need not save memory.
os.environ.setdefault("GOGC", "1000")

# readline, which pytest loads, writes the width of its terminal to the environment of the workers.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# A run in the background ignores SIGINT, and one under nohup SIGHUP; the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """All workers start processes from the same parent process."""
    if not hasattr(config, "workerinput"):
        with contextlib.ExitStack() as stack:
            stack.enter_context(one_parent())
            config.add_cleanup(stack.pop_all().close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that has no unit test where only these are wanted."""
    return (config.getoption("markexpr") == "unit" and is_file_of_another_level(collection_path)) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the test with its level."""
    item.add_marker(level_of(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Also the fixtures of unit tests start no process and open no socket."""
    with inside_of_the_process(item):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name why tests were skipped, and how many for each reason: -ra has a line for each place."""
    reasons = Counter(one.longrepr[2].removeprefix("Skipped: ") for one in terminalreporter.getreports("skipped"))
    told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"{reasons.total()} skipped. {told}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Unit tests start no process and open no socket."""
    with inside_of_the_process(item):
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs inside of a test sets up logging, to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [one for one in root.handlers if one in handlers]
    root.setLevel(level)


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an API server that all tests of a worker share: a real one with KUBEBUILDER_ASSETS."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as path:
        yield path


@pytest.fixture(scope="session")
def client(kubeconfig: Path) -> Iterator[ApiClient]:
    """The administrator's client of that server."""
    with connect(kubeconfig) as connected:
        yield connected


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets, whose paths may have no more than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)
