# SPDX-License-Identifier: Apache-2.0
"""An API server that serves ComputeDomains, of these tests only."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from tests.support.apiserver import api_server, connect

from .domains import serve_domains


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of the server."""
    with api_server(tmp_path_factory.mktemp("apiserver")) as path:
        yield path


@pytest.fixture(scope="session")
def admin(kubeconfig: Path) -> Iterator[ApiClient]:
    """The administrator's client of the server."""
    with connect(kubeconfig) as client:
        serve_domains(client)
        yield client
