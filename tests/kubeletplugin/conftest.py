# SPDX-License-Identifier: Apache-2.0
"""Plugins inside of a test end with it."""

from collections.abc import Iterator

import pytest

from .inside import RUNNING


@pytest.fixture(autouse=True)
def _plugins_end() -> Iterator[None]:
    yield
    for plugin in tuple(RUNNING):
        plugin.stop()
