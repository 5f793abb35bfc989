# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own control plane on top of the server: scheduler and controller manager, unchanged.

The hardest clients there are: informers of two dozen kinds, protobuf, leader election, bindings.
Skipped where the programs are not to be had.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions

from ..controlplane import program
from .binaries import binary
from .conftest import SLICES, resource_slice
from .conversation import Partner

SCHEDULER = binary("kube-scheduler")
MANAGER = binary("kube-controller-manager")
pytestmark = pytest.mark.skipif(
    SCHEDULER is None or MANAGER is None,
    reason="no kube-scheduler and kube-controller-manager in KUBEBUILDER_ASSETS",
)
PATIENCE = 90.0


def until(api: Partner, path: str, *wanted: str) -> dict[str, Any]:
    """The first answer that has all of `wanted` in it."""
    end = time.monotonic() + PATIENCE
    while True:
        _, _, body = api.ask("GET", path)
        if all(text in str(body) for text in wanted):
            found: dict[str, Any] = body
            return found
        assert time.monotonic() < end, body
        time.sleep(0.1)


def test_a_job_with_a_claim_template_is_scheduled_and_cleaned_up(tmp_path: Path) -> None:
    assert SCHEDULER is not None
    assert MANAGER is not None
    with ApiServer(ApiServerOptions(minor=36)) as server:
        ca = tmp_path / "ca.pem"
        ca.write_bytes(server.certificate_authority or b"")
        api = Partner(server.url, server.admin_token, str(ca))
        kubeconfig = str(server.write_kubeconfig(tmp_path / "kubeconfig"))
        common = ("--kubeconfig", kubeconfig, "--secure-port=0")
        controllers = "job-controller,resourceclaim-controller,garbage-collector-controller"
        with (
            program(SCHEDULER, tmp_path / "scheduler.log", *common, "--leader-elect-retry-period=200ms"),
            program(MANAGER, tmp_path / "manager.log", *common, "--leader-elect=false", f"--controllers={controllers}"),
        ):
            room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
            node = {
                "metadata": {"name": "node-1"},
                "status": {"allocatable": room, "capacity": room, "conditions": [ready]},
            }
            assert api.ask("POST", "/api/v1/nodes", node)[0] == 201
            devices = [{"name": "gpu-0", "attributes": {"model": {"string": "H100"}}}]
            assert api.ask("POST", SLICES, resource_slice("node-1", devices=devices))[0] == 201
            selector = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].model == 'H100'"}}
            api.ask(
                "POST",
                "/apis/resource.k8s.io/v1/deviceclasses",
                {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}},
            )
            request = {"name": "one", "exactly": {"deviceClassName": "gpu"}}
            template = {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
            namespace = "/apis/resource.k8s.io/v1/namespaces/default"
            assert api.ask("POST", f"{namespace}/resourceclaimtemplates", template)[0] == 201
            container = {"name": "a", "image": "b", "resources": {"claims": [{"name": "gpu"}]}}
            pod = {
                "restartPolicy": "Never",
                "containers": [container],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            }
            jobs = "/apis/batch/v1/namespaces/default/jobs"
            assert api.ask("POST", jobs, {"metadata": {"name": "j"}, "spec": {"template": {"spec": pod}}})[0] == 201

            claims = until(api, f"{namespace}/resourceclaims", "reservedFor", "gpu-0")
            (result,) = claims["items"][0]["status"]["allocation"]["devices"]["results"]
            assert (result["driver"], result["pool"], result["device"]) == ("gpu.nvidia.com", "node-1", "gpu-0")
            pods = until(api, "/api/v1/namespaces/default/pods", "'nodeName': 'node-1'", "'PodScheduled'")
            assert pods["items"][0]["metadata"]["ownerReferences"][0]["kind"] == "Job"
            until(api, "/api/v1/namespaces/default/events", "Successfully assigned")
            lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
            assert api.ask("GET", lease)[2]["spec"]["holderIdentity"]

            name = pods["items"][0]["metadata"]["name"]
            api.ask("DELETE", f"{jobs}/j?propagationPolicy=Background")
            until(api, f"/api/v1/namespaces/default/pods/{name}", "deletionTimestamp")
