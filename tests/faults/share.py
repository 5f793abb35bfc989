# SPDX-License-Identifier: Apache-2.0
"""Which of many similar faults a run tries: all of them with FAULTS_EVERY=1, else every few.

Each test begins at another one, so that tests of several scenarios together try each kind of point. FAULTS_FIRST=N
moves the beginning of all of them by N: runs with N = 0, 1, 2, ... try all points.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

EVERY: Final = int(os.environ.get("FAULTS_EVERY", "0"))
FIRST: Final = int(os.environ.get("FAULTS_FIRST", "0"))
patiently: Final = pytest.mark.timeout(3600 if EVERY else 300)
"""For a test that tries one point after the other."""


def points(first: int, usually: int) -> Iterator[int]:
    """Numbers of points without an end, every `usually`th or as FAULTS_EVERY says; `first` is the test's number."""
    every = EVERY or usually
    point = (first + FIRST) % every
    while True:
        yield point
        point += every


def share(faults: Sequence[T], first: int, usually: int) -> Sequence[T]:
    """The faults that are tried."""
    every = EVERY or usually
    return faults[(first + FIRST) % every :: every]
