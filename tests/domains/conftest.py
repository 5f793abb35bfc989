# SPDX-License-Identifier: Apache-2.0
"""A sandbox with four nodes in two cliques, which the tests of a file share.

It ends with the last of them, because it uses CPU time as long as it runs.
"""

from collections.abc import Iterator

import pytest

from tests.support.domains import Domains, domains_running

QUICK = {"DRA_SIMULATED_IMEX_WINDOW": "0.5", "DRA_SIMULATED_IMEX_PAUSE": "0.5"}
"""Times of the simulated nvidia-imex in seconds, which are ten times as long or more in the real one."""


@pytest.fixture(scope="module")
def shared_domains() -> Iterator[Domains]:
    with pytest.MonkeyPatch.context() as patch, domains_running(4, 2) as running:
        for name, value in QUICK.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def domains(shared_domains: Domains) -> Iterator[Domains]:
    """The sandbox without domains. There are none after the test either, and nothing is left of them anywhere."""
    yield shared_domains
    shared_domains.end()
