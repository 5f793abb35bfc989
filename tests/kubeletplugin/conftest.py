# SPDX-License-Identifier: Apache-2.0
"""The claims of the cluster, and plugins inside of a test, which end with it."""

from collections.abc import Iterator

import pytest

from .inside import RUNNING, ApiServer


@pytest.fixture(autouse=True)
def _plugins_end() -> Iterator[None]:
    yield
    for plugin in tuple(RUNNING):
        plugin.stop()


@pytest.fixture
def api() -> ApiServer:
    """The claims of the cluster."""
    return ApiServer()
