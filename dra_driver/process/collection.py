# SPDX-License-Identifier: Apache-2.0
"""The garbage collector of this process."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """In the context, many objects are made that stay in use. The garbage collector, which would look at all of them
    again and again, does not run.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
