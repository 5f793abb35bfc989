# SPDX-License-Identifier: Apache-2.0
"""The loops of dra-cluster-controller on threads of a test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dra_driver.kube.api.events import EventRecorder


@contextmanager
def at_work(run: Callable[[threading.Event], None], recorder: EventRecorder) -> Iterator[None]:
    """A context in which a loop runs. `recorder` is the one that it has."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        recorder.close(30)
        assert not thread.is_alive(), "the loop does not stop"
