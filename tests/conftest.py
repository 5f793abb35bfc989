# SPDX-License-Identifier: Apache-2.0
"""What tests of several packages share: an API server, and a client of it."""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dra_driver.kubeapi import ApiClient

from .support.apiserver import api_server, connect

# The same examples in every run: a change is blamed for what it broke. HYPOTHESIS_PROFILE=explore finds new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Every worker, and each of the hundreds of processes that tests start, imports the same modules: without bytecode each
# one compiles them anew, which is half of such a process's time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A run in the background ignores SIGINT, which the processes that tests start and interrupt would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Two workers for a processor: many tests wait for processes and time limits."""
    return 2 * (os.cpu_count() or 1)


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
