# SPDX-License-Identifier: Apache-2.0
"""How the NVML library is found, loaded, shared by the gateways of a process, and let go of."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.nvml import Return
from dra_driver.gpu.nvml_library import LIBRARY, LIBRARY_DIRECTORIES, NvmlLibrary, find_library
from dra_driver.gpu.session import Session as NvmlSession
from tests.gpu.stub import Session, build, failure, needs_compiler, process

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with a driver of today."""
    root = build(tmp_path_factory.mktemp("driver"))
    with process() as executor:
        yield Session(executor, root)


def twice(nvml: NvmlLibrary) -> list[object]:
    """Shutting down one gateway of two, and then using both."""
    other = NvmlLibrary()
    other.initialize()
    other.shutdown()
    return [failure(other.device_count), nvml.device_count(), failure(nvml.initialize), failure(other.shutdown)]


@needs_compiler
def test_every_gateway_has_an_initialization_of_its_own(driver: Session) -> None:
    assert driver(twice) == [
        (Return.UNINITIALIZED, "nvmlDeviceGetCount: UNINITIALIZED"),
        3,
        (Return.ALREADY_INITIALIZED, "nvmlInitWithFlags: ALREADY_INITIALIZED (this object is initialized)"),
        (Return.UNINITIALIZED, "nvmlShutdown: UNINITIALIZED"),
    ]


def closing(nvml: NvmlLibrary) -> list[object]:
    """What happens when a gateway is shut down while a call is inside of the library."""
    ours, theirs = socket.socketpair()
    waiting_set = nvml.event_set()
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(nvml.wait_event(waiting_set, theirs.fileno())))
    waiting.start()
    ours.recv(1)
    closer = threading.Thread(target=nvml.shutdown)
    closer.start()
    while failure(nvml.device_count) is None:  # until it closes
        pass
    seen: list[object] = [closer.is_alive(), list(answers)]
    ours.send(b"x")
    waiting.join()
    closer.join()
    nvml.initialize()
    return [*seen, answers, failure(nvml.device_count)]


@needs_compiler
def test_shutting_down_lets_nobody_in_and_waits_for_those_inside(driver: Session) -> None:
    assert driver(closing) == [True, [], [None], None]


def upgraded(root: Path, new: str) -> list[object]:
    """What a process sees whose driver is replaced by that in the folder `new` while it runs."""
    before, other = NvmlLibrary(root), NvmlLibrary(root)
    before.initialize()
    other.initialize()
    seen: list[object] = [before.driver_version()]
    _replace_library(root, Path(new))
    seen.append(failure(before.driver_version))
    before.shutdown()
    seen.append(failure(before.initialize))  # the old library is there as long as `other` is
    other.shutdown()
    before.initialize()
    seen.append(before.driver_version())
    os.environ["KERNEL_MODULE"] = "590.44.01"
    before.shutdown()
    seen.append(failure(before.initialize))
    os.environ["KERNEL_MODULE"] = "580.95.05"
    before.initialize()
    return [*seen, before.device_count(), _mapped(LIBRARY)]


def _replace_library(root: Path, new: Path) -> None:
    """Upgrade the driver in `root`, and its kernel module, to the one in `new`."""
    library = root / "usr/lib64" / LIBRARY
    library.unlink()
    shutil.copy(new / "usr/lib64" / LIBRARY, library)
    os.environ["KERNEL_MODULE"] = "580.95.05"


def _mapped(library: str) -> int:
    """How many files called `library` this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return len({line.split()[4] for line in lines if library in line})


@needs_compiler
def test_after_an_upgrade_the_library_of_the_new_driver_is_loaded(tmp_path: Path) -> None:
    new = build(tmp_path / "new", '-DVERSION="580.95.05"')
    with process() as executor:
        assert executor.submit(upgraded, build(tmp_path / "old"), str(new)).result() == [
            "570.158.01",
            (Return.UNKNOWN, "nvmlSystemGetDriverVersion: UNKNOWN (code 999)"),
            (Return.LIB_RM_VERSION_MISMATCH, "nvmlInitWithFlags: LIB_RM_VERSION_MISMATCH"),
            "580.95.05",
            (Return.LIB_RM_VERSION_MISMATCH, "nvmlInitWithFlags: LIB_RM_VERSION_MISMATCH"),
            3,
            1,
        ]


def renewed(root: Path, new: str) -> list[object]:
    """What a session in such a process sees."""
    held = NvmlSession(lambda: NvmlLibrary(root), root / "no-sysfs")
    seen: list[object] = [held.inventory().driver_version]
    _replace_library(root, Path(new))
    seen += [held.inventory().driver_version, held.generation, len(held.pulse().gpus)]
    return seen


@needs_compiler
def test_a_session_goes_over_to_the_new_driver(tmp_path: Path) -> None:
    new = build(tmp_path / "new", '-DVERSION="580.95.05"')
    with process() as executor:
        seen = executor.submit(renewed, build(tmp_path / "old"), str(new)).result()
    assert seen == ["570.158.01", "580.95.05", 2, 3]


# Where the library is found


def starts(driver_root: Path | None) -> tuple[Return, str] | None:
    """Why a gateway cannot be initialized; None when it can."""
    return failure(NvmlLibrary(driver_root).initialize)


@pytest.mark.parametrize("directory", LIBRARY_DIRECTORIES)
def test_the_library_is_found_below_the_driver_root(tmp_path: Path, directory: str) -> None:
    (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    library = tmp_path / directory / LIBRARY
    library.touch()
    assert find_library(tmp_path) == library


def test_a_root_without_the_library_has_none(tmp_path: Path) -> None:
    assert find_library(tmp_path) is None


def test_the_first_directory_counts(tmp_path: Path) -> None:
    for directory in LIBRARY_DIRECTORIES:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        (tmp_path / directory / LIBRARY).touch()
    assert find_library(tmp_path) == tmp_path / LIBRARY_DIRECTORIES[0] / LIBRARY


def test_a_library_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_text("not a library")
    with process() as executor:
        found = executor.submit(starts, tmp_path).result()
    assert found is not None
    code, text = found
    assert code is Return.LIBRARY_NOT_FOUND
    assert text.startswith("dlopen: LIBRARY_NOT_FOUND (")
    assert str(tmp_path / LIBRARY) in text


@pytest.mark.skipif(
    find_library(Path("/")) is not None,
    reason="this machine has a driver of its own",
)
def test_missing_library_is_named(tmp_path: Path) -> None:
    with process() as executor:
        for root in (tmp_path, None):
            found = executor.submit(starts, root).result()
            assert found is not None
            assert found[0] is Return.LIBRARY_NOT_FOUND
            assert found[1].startswith(f"dlopen: LIBRARY_NOT_FOUND ({LIBRARY}: cannot open")


@needs_compiler
def test_a_library_that_appears_later_is_found_by_the_same_process(tmp_path: Path) -> None:
    with process() as executor:
        assert executor.submit(starts, tmp_path).result() is not None
        build(tmp_path)
        assert executor.submit(starts, tmp_path).result() is None
