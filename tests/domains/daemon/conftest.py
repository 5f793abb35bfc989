# SPDX-License-Identifier: Apache-2.0
"""An API server that serves ComputeDomainCliques. It is these tests' own, because others install the definition."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from tests.support.apiserver import api_server, connect
from tests.support.imex import serve_cliques


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of the server."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as path:
        yield path


@pytest.fixture(scope="session")
def client(kubeconfig: Path) -> Iterator[ApiClient]:
    """The administrator's client of the server."""
    with connect(kubeconfig) as connected:
        serve_cliques(connected)
        yield connected
