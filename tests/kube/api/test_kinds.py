# SPDX-License-Identifier: Apache-2.0
"""Which version of resource.k8s.io is spoken with which server."""

from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient, ApiError, Connection, Credentials, newest_dialect
from dra_driver.kube.kinds import claims_of, slices_of
from dra_driver.kube.resource.codec import GROUP
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import connect
from tests.support.faultyserver import FaultyServer, RequestFault
from tests.support.scripted import Reply, scripted

pytestmark = pytest.mark.cluster

ADVICE = (
    "this driver needs one of v1, v1beta2, v1beta1: v1 is enabled by default from Kubernetes 1.34; for older versions,"
    " start kube-apiserver with --feature-gates=DynamicResourceAllocation=true and"
    " --runtime-config=resource.k8s.io/v1beta1=true (1.33: also resource.k8s.io/v1beta2=true)"
)


@pytest.mark.parametrize(
    ("minor", "served", "chosen"),
    [
        (32, ("v1beta1",), "v1beta1"),
        (33, ("v1beta1",), "v1beta1"),
        (33, ("v1beta1", "v1beta2"), "v1beta2"),
        (33, ("v1alpha3", "v1beta2"), "v1beta2"),
        (34, None, "v1"),
        (34, ("v1", "v1beta2", "v1beta1"), "v1"),
        (34, ("v1beta1",), "v1beta1"),
        (37, None, "v1"),
    ],
)
def test_the_newest_that_both_know(tmp_path: Path, minor: int, served: tuple[str, ...] | None, chosen: str) -> None:
    options = ApiServerOptions(minor=minor, resource_versions=served)
    with FaultyServer(options) as server, connect(server.write_kubeconfig(tmp_path / "config")) as client:
        dialect = newest_dialect(client)
        assert dialect.version == chosen
        for kind in (claims_of(dialect), slices_of(dialect)):
            assert client.list(kind).items == []


@pytest.mark.parametrize(
    ("minor", "served", "found"),
    [
        (32, None, f"the API server serves no {GROUP}"),
        (33, None, f"the API server serves no {GROUP}"),
        (33, ("v1alpha3",), f"the API server serves only v1alpha3 of {GROUP}"),
    ],
)
def test_a_server_that_lacks_it_is_told_how_to_get_it(
    tmp_path: Path, minor: int, served: tuple[str, ...] | None, found: str
) -> None:
    options = ApiServerOptions(minor=minor, resource_versions=served)
    with FaultyServer(options) as server, connect(server.write_kubeconfig(tmp_path / "config")) as client:
        with pytest.raises(ApiError) as raised:
            newest_dialect(client)
        assert str(raised.value) == f"{found}, and {ADVICE}"


def test_a_version_of_the_future_is_not_taken() -> None:
    versions = [{"version": version} for version in ("v2", "v1beta2", "v1beta1")]
    with (
        scripted([Reply({"versions": versions})]) as server,
        Connection(Credentials(server.url, lambda: None), "tests") as connection,
    ):
        assert newest_dialect(ApiClient(connection)).version == "v1beta2"
        assert server.calls == [f"GET /apis/{GROUP}"]


def test_a_server_that_is_in_trouble_is_not_taken_for_one_without_it(tmp_path: Path) -> None:
    with FaultyServer(ApiServerOptions()) as server, connect(server.write_kubeconfig(tmp_path / "config")) as client:
        server.faults.add(RequestFault(error=500))
        with pytest.raises(ApiError, match="500 InternalError"):
            newest_dialect(client)


def test_the_version_of_the_tests_server_is_found(client: ApiClient) -> None:
    assert newest_dialect(client).version == "v1"
