# SPDX-License-Identifier: Apache-2.0
"""What the process makes of a driver or an API server that fails it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.gpu.nvml import Return
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from dra_driver.names import DRIVER_NAME
from kubeletplugin.protocol import dra_v1_pb2
from tests.support.apiserver import embedded
from tests.support.faultyserver import RequestFault as ApiFault
from tests.support.plugin import NOTHING, Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

MIG = "gpu-4-mig-1g10gb-19-0"
READY = "GPUs are ready"


@pytest.fixture
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig) as made:
        yield made


def unknown() -> Any:
    return dra_v1_pb2.Claim(namespace="default", name="never-seen", uid=str(uuid.uuid4()))


class TestWithoutDriver:
    """kubelet is answered from the first moment, whatever NVML does."""

    def prepared(self, plugin: Plugin, client: ApiClient) -> list[Any]:
        """A whole GPU's claim and a MIG device's, prepared by a process that was killed since."""
        claims = [stored_claim(client, "gpu-0"), stored_claim(client, MIG)]
        plugin.start()
        assert [one.error for one in plugin.prepare(*claims).values()] == ["", ""]
        plugin.kill()
        return claims

    def test_an_initialization_that_hangs_holds_up_no_unprepare(self, plugin: Plugin, client: ApiClient) -> None:
        whole, mig = self.prepared(plugin, client)
        plugin.hold("nvmlInitWithFlags")  # there is one, for claims and for health
        plugin.start("started")
        plugin.wait_held()
        assert plugin.get_info().name == DRIVER_NAME
        nobody = unknown()
        assert plugin.unprepare(nobody, whole, mig) == {nobody.uid: "", whole.uid: "", mig.uid: ""}
        assert plugin.left()["specs"] == []
        assert plugin.left()["records"] == [f"{mig.uid}.json"]
        another = stored_claim(client, "gpu-1")
        assert "the NVIDIA driver is not ready" in plugin.prepare(another)[another.uid].error
        assert plugin.terminate() == 0
        plugin.start()
        assert plugin.left() == NOTHING

    def test_a_driver_that_comes_late_is_found(self, plugin: Plugin, client: ApiClient) -> None:
        _, mig = self.prepared(plugin, client)
        plugin.node.unload_driver(Return.LIBRARY_NOT_FOUND)
        plugin.start("the NVIDIA driver is not ready: ")
        assert "LIBRARY_NOT_FOUND" in plugin.prepare(claim := stored_claim(client, "gpu-1"))[claim.uid].error
        assert plugin.prepare(mig)[mig.uid].error == ""  # it is prepared, and kubelet may ask again
        assert plugin.unprepare(mig) == {mig.uid: ""}
        plugin.node.load_driver()
        wait_for(lambda: READY in plugin.log, READY)
        assert plugin.prepare(claim)[claim.uid].error == ""
        assert plugin.instances() == []

    def test_a_driver_that_went_away_is_found_again(self, plugin: Plugin, client: ApiClient) -> None:
        plugin.start()
        plugin.node.unload_driver()
        mig = stored_claim(client, MIG)
        assert plugin.prepare(mig)[mig.uid].error
        wait_for(lambda: "the NVIDIA driver is no longer available" in plugin.log, "the log line")
        assert "the NVIDIA driver is not ready" in plugin.prepare(mig)[mig.uid].error
        plugin.node.load_driver()
        wait_for(lambda: plugin.log.count(READY) == 2, "the driver to be found again")
        assert plugin.prepare(mig)[mig.uid].error == ""

    def test_an_nvml_error_reaches_the_pod(self, plugin: Plugin, client: ApiClient) -> None:
        plugin.start()
        plugin.node.inject(Fault("nvmlGpuInstanceCreateComputeInstance", code=Return.UNKNOWN, times=1))
        mig = stored_claim(client, MIG)
        assert "nvmlGpuInstanceCreateComputeInstance" in plugin.prepare(mig)[mig.uid].error
        assert plugin.left() == NOTHING


class TestApiServer:
    """Of a server of their own."""

    def test_unreachable_server_is_reported_and_nothing_is_left(self, tmp_path: Path) -> None:
        with embedded(tmp_path) as (server, kubeconfig, client), plugin_on(kubeconfig) as plugin:
            known, new = stored_claim(client, "gpu-0"), stored_claim(client, MIG)
            plugin.start()
            assert plugin.prepare(known)[known.uid].error == ""
            before = plugin.left()
            server.faults.refuse_connections()
            assert plugin.prepare(known)[known.uid].error == ""
            assert f"GET {server.url}/apis/resource.k8s.io" in plugin.prepare(new)[new.uid].error
            assert plugin.left() == before
            assert plugin.unprepare(known) == {known.uid: ""}
            server.faults.clear()
            assert plugin.prepare(new)[new.uid].error == ""

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            (ApiFault(verb="get", resource="resourceclaims", error=500), "500 InternalError"),
            (ApiFault(verb="get", resource="resourceclaims", error=403), "403"),
            (ApiFault(verb="get", resource="resourceclaims", error=429, retry_after=0, times=2), ""),
            (ApiFault(verb="get", resource="resourceclaims", disconnect=True, times=1), ""),
        ],
    )
    def test_lasting_api_error_is_the_answer_to_kubelet(self, tmp_path: Path, fault: ApiFault, said: str) -> None:
        with embedded(tmp_path) as (server, kubeconfig, client), plugin_on(kubeconfig) as plugin:
            claim = stored_claim(client, "gpu-0")
            plugin.start()
            server.faults.add(fault)
            error = plugin.prepare(claim)[claim.uid].error
            assert said in error
            assert bool(error) == bool(said)

    def test_upgraded_server_is_asked_in_its_new_version(self, tmp_path: Path) -> None:
        common: dict[str, Any] = {"tls": False, "admin_token": "t"}
        with plugin_on(tmp_path / "config") as plugin:
            with embedded(tmp_path, minor=33, resource_versions=("v1beta1",), **common) as (server, _, _):
                plugin.start()
                gone = unknown()
                assert "there is no ResourceClaim" in plugin.prepare(gone)[gone.uid].error
            with embedded(tmp_path, port=server.port, **common) as (_, _, client):
                claim = stored_claim(client, "gpu-0")
                assert plugin.prepare(claim)[claim.uid].error == ""

    def test_server_without_the_api_is_reported_with_a_remedy(self, tmp_path: Path) -> None:
        with embedded(tmp_path, minor=33) as (_, kubeconfig, _), plugin_on(kubeconfig) as plugin:
            plugin.start()
            claim = unknown()
            assert "--runtime-config=resource.k8s.io/v1beta1=true" in plugin.prepare(claim)[claim.uid].error
