# SPDX-License-Identifier: Apache-2.0
"""Processes in which the real gateway meets an NVML of our own (nvml_stub.c).

A library that crashes takes its process along, so every session is a process of its own. What a test wants to know is
a function that runs there, with the gateway, and returns plain values.
"""

import multiprocessing
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.nvml_library import LIBRARY, NvmlLibrary

T = TypeVar("T")

STUB = Path(__file__).with_name("nvml_stub.c")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on PATH to build the NVML stub with")


class Session:
    """A process in which a gateway is used."""

    def __init__(self, executor: ProcessPoolExecutor, driver_root: Path | None) -> None:
        self._executor = executor
        self._driver_root = driver_root

    def __call__(self, ask: Callable[[NvmlLibrary], T]) -> T:
        """What `ask` answers there, given an initialized gateway."""
        return self._executor.submit(_with_gateway, ask, self._driver_root).result()


def _with_gateway(ask: Callable[[NvmlLibrary], T], driver_root: Path | None) -> T:
    nvml = NvmlLibrary(driver_root)
    nvml.initialize()
    try:
        return ask(nvml)
    finally:
        nvml.shutdown()


def build(root: Path, *defines: str, directory: str = "usr/lib64") -> Path:
    """A driver root with the stub in it."""
    assert COMPILER is not None
    library = root / directory / LIBRARY
    library.parent.mkdir(parents=True)
    options = ["-std=c11", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", *defines]
    subprocess.run([COMPILER, *options, "-o", str(library), str(STUB)], check=True)
    return root


def process() -> ProcessPoolExecutor:
    """One fresh process."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def failure(call: Callable[..., object], *arguments: object) -> tuple[Return, str] | None:
    """The code and text of the error that a call fails with; None when it succeeds."""
    try:
        call(*arguments)
    except NvmlError as error:
        return error.code, str(error)
    return None
