# SPDX-License-Identifier: Apache-2.0
"""One plugin a node: two would change the same GPUs and take each other's sockets away."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class AnotherInstanceError(Exception):
    """There is another plugin; the text says how that is known."""


@contextlib.contextmanager
def only_instance(folder: Path) -> Iterator[None]:
    """Be the only process in this context with `folder`, which is made when missing. The kernel ends it with the
    process, however that ends. Raises AnotherInstanceError or OSError.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    file = folder / "lock"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherInstanceError(f"another dra-kubeletplugin runs on this node: it holds {file}") from None
        yield
    finally:
        os.close(descriptor)
