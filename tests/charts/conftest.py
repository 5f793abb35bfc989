# SPDX-License-Identifier: Apache-2.0
"""Helm's engine is a library with wheels for x86-64 only; without it nothing here is collected."""

import importlib.util
from collections.abc import Iterator

import pytest

from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS
from dra_driver.kube.api import ApiClient
from tests.support.apiserver import api_server, connect
from tests.support.waiting import wait_for

collect_ignore_glob = [] if importlib.util.find_spec("helm_python") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ApiClient]]:
    """An API server with the chart's definitions, rights and policies: clients of `domains.PODS`, and `admin`."""
    from .domains import PODS, domain_objects
    from .policies import denied, installed

    folder = tmp_path_factory.mktemp("domains")
    with (
        api_server(folder, rbac=True) as kubeconfig,
        connect(kubeconfig) as admin,
        installed(admin, kubeconfig, folder, domain_objects(), PODS) as clients,
    ):
        kinds = (COMPUTE_DOMAINS, CLIQUES)
        wait_for(lambda: not denied(lambda: [admin.list(kind) for kind in kinds]), "the definitions to be served")
        yield {**clients, "admin": admin}
