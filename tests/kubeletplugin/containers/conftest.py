# SPDX-License-Identifier: Apache-2.0
"""What several tests of CDI specs need from the machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cdi.trees import Terminal

_VIDEO = 44


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A pseudoterminal of the group 44, or of this process's own where only root may give it away."""
    descriptors = os.openpty()
    path = os.ttyname(descriptors[1])
    if os.geteuid() == 0:
        os.chown(path, 0, _VIDEO)
    Path(path).chmod(0o660)
    status = Path(path).stat()
    yield Terminal(path, status.st_gid, (os.major(status.st_rdev), os.minor(status.st_rdev)))
    for descriptor in descriptors:
        os.close(descriptor)
