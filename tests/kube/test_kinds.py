# SPDX-License-Identifier: Apache-2.0
"""The kinds of `dra_driver.kube.kinds` compared with those that an API server serves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube import kinds
from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import kind_named
from dra_driver.kube.resource.codec import V1
from tests.support.apiserver import api_server, connect

pytestmark = pytest.mark.cluster

NOT_SERVED = {kinds.CERTIFICATES, kinds.NODE_FEATURES, kinds.ACCESS_REVIEWS, kinds.POD_GROUPS, kinds.WORKLOADS}
"""Kinds of cert-manager and node feature discovery, and those that the embedded server of this release lacks."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Kind]]:
    """The kinds of the server, by version and name."""
    folder: Path = tmp_path_factory.mktemp("server")
    with api_server(folder) as kubeconfig, connect(kubeconfig) as client:
        yield {(kind.api_version, name): kind for kind, name in _resources(client)}


def _resources(client: ApiClient) -> Iterator[tuple[Kind, str]]:
    groups = client.get_path("/apis")["groups"]
    for version in ("v1", *(found["groupVersion"] for group in groups for found in group["versions"])):
        path = f"/api/{version}" if version == "v1" else f"/apis/{version}"
        for resource in client.get_path(path)["resources"]:
            if "/" not in resource["name"]:
                yield Kind(version, resource["name"], resource["namespaced"]), resource["kind"]


def test_each_constant_is_a_kind_of_the_server(served: dict[tuple[str, str], Kind]) -> None:
    constants = {value for value in vars(kinds).values() if isinstance(value, Kind)}
    assert constants - NOT_SERVED <= set(served.values())


@pytest.mark.parametrize("of", [kinds.claims_of, kinds.templates_of, kinds.slices_of, kinds.classes_of])
def test_each_kind_of_a_dialect_is_a_kind_of_the_server(served: dict[tuple[str, str], Kind], of: object) -> None:
    assert callable(of)
    assert of(V1) in served.values()


def test_plural_of_a_name_is_that_of_the_server(served: dict[tuple[str, str], Kind]) -> None:
    guessed = {key: kind_named(*key, namespaced=kind.namespaced) for key, kind in served.items()}
    assert {name for (_, name), kind in guessed.items() if kind not in served.values()} <= {"Endpoints"}
    assert len(guessed) > 20
