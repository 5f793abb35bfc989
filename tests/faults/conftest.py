# SPDX-License-Identifier: Apache-2.0
"""Processes that can be killed at any point, and a node for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NAMESPACES

from .processes import KillablePlugin, killable_plugin


@pytest.fixture(scope="module")
def with_administrators(client: ApiClient) -> None:
    """The namespace "default" may have claims with adminAccess."""
    namespaces = NAMESPACES
    default = client.get(namespaces, "default")
    default["metadata"].setdefault("labels", {})["resource.kubernetes.io/admin-access"] = "true"
    client.update(namespaces, default)


@pytest.fixture
def plugin(with_administrators: None, kubeconfig: Path) -> Iterator[KillablePlugin]:
    with killable_plugin(kubeconfig) as made:
        made.start()
        yield made
