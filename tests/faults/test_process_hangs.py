# SPDX-License-Identifier: Apache-2.0
"""The two node processes as they are started, with a driver that hangs: what is published, answered and shown."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from dra_driver.gpu.nvml import EventType
from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from tests.controller.node.test_process import log_of, node_with_slices, running
from tests.support.apiserver import SLICES
from tests.support.nodes import make_node
from tests.support.plugin import POOL, Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

FOR_EVER = 10**6
UUID, INITIALIZE = "nvmlDeviceGetUUID", "nvmlInitWithFlags"


def page(log: str, path: str) -> tuple[int, str]:
    """Status and text of a page of the process with this log."""
    port = re.search(r"port=(\d+)", log)
    assert port is not None
    answer = urllib3.request("GET", f"http://127.0.0.1:{port[1]}{path}")
    return answer.status, answer.data.decode()


def says(log: str, path: str, text: str) -> bool:
    return text in page(log, path)[1]


@pytest.mark.parametrize("call", [UUID, "nvmlDeviceGetFieldValues"])
def test_a_gpu_hangs_while_the_controller_runs(client: ApiClient, kubeconfig: Path, tmp_path: Path, call: str) -> None:
    name = node_with_slices(client)
    hardware = make_node(tmp_path / "node", "h100x8-mixed", name).node
    flags = (f"--node-name={name}", f"--kubeconfig={kubeconfig}", "--http-endpoint=127.0.0.1:0")

    def taints() -> dict[str, set[str]]:
        items = client.list(SLICES, field_selector=f"spec.nodeName={name}").items
        devices = (device for one in items for device in one["spec"].get("devices") or [])
        tainted = ((one["name"], one["taints"]) for one in devices if one.get("taints"))
        return {name: {taint["key"].partition("/")[2] for taint in found} for name, found in tainted}

    with running(tmp_path, *flags):
        wait_for(lambda: client.list(SLICES, field_selector=f"spec.nodeName={name}").items, "slices")
        wait_for(lambda: page(log_of(tmp_path), "/readyz")[0] == 200, "the process to be ready")
        nvml = hardware.nvml()
        nvml.initialize()
        first = nvml.uuid(nvml.device_by_index(0))
        hardware.inject(Fault(call, gpu=3, seconds=FOR_EVER))
        hardware.raise_event(first, EventType.XID, 79)
        wait_for(lambda: taints().get("gpu-0") == {"xid"}, "the event of another GPU")
        wait_for(lambda: taints() == {"gpu-0": {"xid"}, "gpu-3": {"gpu-lost"}}, f"taints, not {taints()}", 90.0)
        wait_for(lambda: says(log_of(tmp_path), "/readyz", f"{call} for GPU-"), "the probe to name the call")
        assert page(log_of(tmp_path), "/readyz")[0] == 503
        assert re.search(r"nvidia_dra_hanging_calls\{.*\} 1\.0", page(log_of(tmp_path), "/metrics")[1])
        errors = [line for line in log_of(tmp_path).splitlines() if " ERROR " in line]
        hangs = [line for line in errors if "has not returned within" in line]
        assert errors[:1] == hangs[:1]
        assert all(f"{call} for " in line for line in hangs), errors
        hardware.clear_faults()
        wait_for(lambda: taints() == {"gpu-0": {"xid"}}, "the taint to go", 90.0)
        wait_for(lambda: page(log_of(tmp_path), "/readyz")[0] == 200, "the process to be ready again")


@pytest.fixture
def plugin(client: ApiClient, kubeconfig: Path) -> Iterator[Plugin]:
    with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as one:
        yield one


def test_the_plugin_starts_beside_a_gpu_that_hangs(client: ApiClient, plugin: Plugin) -> None:
    plugin.node.inject(Fault(UUID, gpu=3, seconds=FOR_EVER))
    plugin.start()
    whole, hung = stored_claim(client, "gpu-0"), stored_claim(client, "gpu-3")
    assert plugin.prepare(whole)[whole.uid].error == ""
    error = plugin.prepare(hung)[hung.uid].error
    assert f"{UUID} for GPU 3 has not returned within" in error
    said = f"{UUID} for GPU 3 has not returned for"
    wait_for(lambda: says(plugin.log, "/readyz", said), "the probe to name the call")
    assert says(plugin.log, "/metrics", 'nvidia_dra_hanging_calls{driver="gpu.nvidia.com"} 1.0')
    assert page(plugin.log, "/healthz")[0] == 200
    plugin.node.clear_faults()
    wait_for(lambda: plugin.prepare(hung)[hung.uid].error == "", "the GPU to be given")
    assert plugin.unprepare(whole, hung) == {whole.uid: "", hung.uid: ""}


def test_the_plugin_starts_while_nvml_does_not_initialize(client: ApiClient, plugin: Plugin) -> None:
    plugin.node.inject(Fault(INITIALIZE, seconds=FOR_EVER))
    plugin.start("kubeletplugin.serve: started")
    claim = stored_claim(client, "gpu-0")
    wait_for(lambda: f"{INITIALIZE} for the driver" in plugin.prepare(claim)[claim.uid].error, "the call to be named")
    assert says(plugin.log, "/readyz", f"{INITIALIZE} for the driver has not returned for")
    assert plugin.unprepare(claim) == {claim.uid: ""}
    plugin.node.clear_faults()
    wait_for(lambda: plugin.prepare(claim)[claim.uid].error == "", "the GPU to be given")
    assert plugin.unprepare(claim) == {claim.uid: ""}


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault(UUID, gpu=3, seconds=FOR_EVER), f"{UUID} for GPU 3 has not returned"),
        (Fault(INITIALIZE, seconds=FOR_EVER), f"{INITIALIZE} for the driver has not returned"),
    ],
)
def test_status_and_check_say_what_hangs(client: ApiClient, plugin: Plugin, fault: Fault, text: str) -> None:
    if not any(one["metadata"]["name"] == POOL for one in client.list(NODES).items):
        client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": POOL}})
    plugin.node.inject(fault)
    assert text in plugin.command("status").stdout
    check = plugin.command("check", f"--node-name={POOL}", f"--kubeconfig={plugin.kubeconfig}")
    assert text in check.stdout
