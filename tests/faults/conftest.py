# SPDX-License-Identifier: Apache-2.0
"""Processes that can be killed at any point, and a node for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kubeapi import ApiClient, Kind

from .processes import DoomedPlugin, Nursery, doomed_plugin, nursery


@pytest.fixture(scope="module")
def nest(client: ApiClient) -> Iterator[Nursery]:
    """The processes; and a namespace with administrators in it."""
    namespaces = Kind("v1", "namespaces")
    default = client.get(namespaces, "default")
    default["metadata"].setdefault("labels", {})["resource.kubernetes.io/admin-access"] = "true"
    client.update(namespaces, default)
    with nursery() as made:
        yield made


@pytest.fixture
def plugin(nest: Nursery, kubeconfig: Path) -> Iterator[DoomedPlugin]:
    with doomed_plugin(nest, kubeconfig) as made:
        made.start()
        yield made
