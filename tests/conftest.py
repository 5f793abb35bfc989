# SPDX-License-Identifier: Apache-2.0
"""What tests of several packages share: an API server, and a client of it."""

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dra_driver.gpu.threads import NvmlThreads
from dra_driver.kube.api import ApiClient

from .support.apiserver import api_server, connect
from .support.hostile import DEEPEST
from .support.preloaded import adopt_sandboxes

# The same examples in every run: a change is blamed for what it broke. HYPOTHESIS_PROFILE=explore finds new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Every worker, and each of the hundreds of processes that tests start, imports the same modules: without bytecode each
# one compiles them anew, which is half of such a process's time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Simulated nodes are thousands of small files: in memory they are made and removed ten times as fast.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    facts = os.statvfs(MEMORY)
    if facts.f_bavail * facts.f_frsize > 4 << 30 and not facts.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None

# Helm and kubectl, as a library and as programs, need not save memory.
os.environ.setdefault("GOGC", "400")

# readline, which pytest loads, writes the width of its terminal to the environment of the workers.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# A run in the background ignores SIGINT, and one under nohup SIGHUP; the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


adopt_sandboxes()

FEW_THREADS = 50
LIVING: weakref.WeakSet[NvmlThreads] = weakref.WeakSet()
_made = NvmlThreads.__init__


def _remembered(threads: NvmlThreads) -> None:
    """Make the threads' owner, and remember it for `_threads_end`."""
    _made(threads)
    LIVING.add(threads)


NvmlThreads.__init__ = _remembered  # type: ignore[method-assign, assignment]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and thousands of tests stay until the end: garbage collection need not look at them again and again.

    Frequent collections of what the tests themselves create would take a tenth of their CPU time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Three workers for a processor: many tests wait for processes and time limits. Each worker collects all tests and
    imports all commands first, which is 20 seconds of a slow processor. More than 24 start too slowly.
    """
    return min(3 * (os.cpu_count() or 1), 24)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests begin first, on a third of the workers: at the end of a run, the processors would only wait for them.

    xdist gives each worker an equal piece of the list. A worker that has done its piece takes tests from the end of
    another one's.
    """
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    long = [item for item in items if item.get_closest_marker("long")]
    ordered = [item for item in items if not item.get_closest_marker("long")]
    start, first = 0, max(1, (workers + 1) // 3)
    for number in range(first):
        ordered[start:start] = long[number::first]
        start += (len(items) - start) // (workers - number)
    items[:] = ordered


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name why tests were skipped, and how many for each reason: -ra has a line for each place."""
    reasons = Counter(one.longrepr[2].removeprefix("Skipped: ") for one in terminalreporter.getreports("skipped"))
    told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"{reasons.total()} skipped. {told}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A reader of the deepest texts uses up the stack. What garbage collection ends at that moment would fail."""
    if not any(name in item.name for name in DEEPEST):
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs inside of a test sets up logging, to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [one for one in root.handlers if one in handlers]
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """A thread for each GPU of each test's node would wait for work until all tests are done: thousands of them.

    A thread that was ended begins anew when there is work for it.
    """
    yield
    if sum(one.name.startswith("nvml-") for one in threading.enumerate()) > FEW_THREADS:
        for calls in list(LIVING):
            calls.end()


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
