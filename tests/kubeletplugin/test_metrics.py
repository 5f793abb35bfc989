# SPDX-License-Identifier: Apache-2.0
"""What the plugin counts, and what its probes say, over HTTP from a running process."""

import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dra_driver.gpu.nvml import NvmlError, Return
from dra_driver.gpu.threads import Hang, HungError
from dra_driver.kube.api import ApiClient, ApiError, UnreachableError
from dra_driver.process.endpoints import new_registry
from dra_driver.sandbox.apiserver import ApiServerOptions
from kubeletplugin.errors import NoDriverError, PrepareError, RecordError, StoppedError
from kubeletplugin.healthchecks import ApiContact
from kubeletplugin.metrics import PREPARE, UNPREPARE, PluginMetrics, error_type
from tests.support.apiserver import connect
from tests.support.claims import mps
from tests.support.faultyserver import FaultyServer
from tests.support.mps import mps_of
from tests.support.plugin import POOL, Plugin, plugin_on, stored_claim
from tests.support.waiting import wait_for

pytestmark = pytest.mark.node

MIG = "gpu-4-mig-1g10gb-19-0"


def url_of(plugin: Plugin) -> str:
    """Where the process serves HTTP: the port is the kernel's choice."""
    found = re.search(r"serving /metrics.* port=(\d+)", plugin.log)
    assert found, plugin.log
    return f"http://127.0.0.1:{found[1]}"


def get(plugin: Plugin, path: str) -> tuple[int, str]:
    """(status, body)"""
    try:
        with urllib.request.urlopen(url_of(plugin) + path, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by metric and the values of its labels, in the order of their names and without driver and node."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = tuple(value for name, value in sorted(one.labels.items()) if name not in ("driver", "node"))
            found.setdefault(one.name, {})[labels] = one.value
    return found


def metrics_of(plugin: Plugin) -> dict[str, dict[tuple[str, ...], float]]:
    return samples(get(plugin, "/metrics")[1])


@pytest.fixture(scope="module")
def plugin(kubeconfig: Path) -> Iterator[Plugin]:
    """One that serves HTTP."""
    with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as one:
        yield one.start()


def test_claims_are_counted_and_timed_as_the_official_driver_does(plugin: Plugin, client: ApiClient) -> None:
    claims = [stored_claim(client, "gpu-0"), stored_claim(client, MIG), stored_claim(client, "gpu-99")]
    before = metrics_of(plugin)
    plugin.prepare(*claims)
    during = metrics_of(plugin)
    plugin.unprepare(*claims)
    after = metrics_of(plugin)
    assert during["nvidia_dra_prepared_devices"] == {("gpu",): 1.0, ("mig",): 1.0}
    assert after["nvidia_dra_prepared_devices"] == {("gpu",): 0.0, ("mig",): 0.0}

    def grown(name: str, *labels: str) -> float:
        return after[name].get(labels, 0.0) - before.get(name, {}).get(labels, 0.0)

    assert grown("nvidia_dra_requests_total", PREPARE) == 2
    assert grown("nvidia_dra_requests_total", UNPREPARE) == 3
    assert grown("nvidia_dra_request_duration_seconds_count", PREPARE) == 2
    assert grown("nvidia_dra_node_prepare_errors_total", "claim") == 1
    assert after["nvidia_dra_requests_inflight"] == {(PREPARE,): 0.0, (UNPREPARE,): 0.0}
    assert grown("nvidia_dra_step_duration_seconds_count", "instance", "do") == 1
    assert grown("nvidia_dra_step_duration_seconds_count", "instance", "undo") == 1
    assert grown("nvidia_dra_api_requests_total", "200", "GET") >= 3


def test_mps_daemons_have_a_state_a_start_and_restarts(plugin: Plugin, client: ApiClient) -> None:
    prefix = "nvidia_dra_mps_daemon"
    claim = stored_claim(client, "gpu-1", sharing=mps())

    def has(running: int, down: int) -> bool:
        return metrics_of(plugin)[f"{prefix}s"] == {("running",): running, ("down",): down}

    with mps_of(plugin.state, plugin.node, plugin.folder / "mps.log") as supervisor:
        plugin.prepare(claim)
        wait_for(lambda: has(1, 0), "the daemon")
        started = metrics_of(plugin)[f"{prefix}_start_time_seconds"]["gpu-1",]
        (daemon,) = plugin.state.glob("mps/s*/pipe/nvidia-cuda-mps-control.pid")
        os.kill(int(daemon.read_text()), signal.SIGKILL)
        wait_for(lambda: metrics_of(plugin)[f"{prefix}_restarts_total"] == {(): 1}, "the restart")
        wait_for(lambda: metrics_of(plugin)[f"{prefix}_start_time_seconds"]["gpu-1",] > started, "the new start")
        supervisor.stop()
        wait_for(lambda: has(0, 1), "the end")
        plugin.unprepare(claim)
        wait_for(lambda: has(0, 0), "the end of the claim")
        wait_for(lambda: f"{prefix}_start_time_seconds" not in metrics_of(plugin), "the end of the series")


def test_every_series_names_the_driver(plugin: Plugin) -> None:
    text = get(plugin, "/metrics")[1]
    for family in text_string_to_metric_families(text):
        if family.name.startswith("nvidia_dra"):
            assert all(one.labels["driver"] == "gpu.nvidia.com" for one in family.samples), family.name
    assert f'nvidia_dra_prepared_devices{{device_type="gpu",driver="gpu.nvidia.com",node="{POOL}"}}' in text


def test_registrations_are_counted_and_the_last_one_holds(plugin: Plugin) -> None:
    for registered, error in ((True, ""), (False, "no such version"), (True, "")):
        plugin.notify(registered, error)
        assert metrics_of(plugin)["nvidia_dra_registered"][()] == float(registered)
        status, body = get(plugin, "/readyz")
        assert ("kubelet refused it: no such version" in body) is not registered
        assert (status == 503) is not registered
    assert metrics_of(plugin)["nvidia_dra_registrations_total"] == {("success",): 2.0, ("failure",): 1.0}


def test_plugin_is_healthy_while_its_sockets_answer(plugin: Plugin) -> None:
    assert get(plugin, "/healthz") == (200, "ok\n")


class TestReadiness:
    """What keeps it from doing its work is named."""

    def test_plugin_is_not_ready_before_kubelet_has_asked(self, kubeconfig: Path) -> None:
        with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as plugin:
            plugin.start()
            status, body = get(plugin, "/readyz")
            assert status == 503
            assert "kubelet has not asked for the registration yet" in body
            plugin.notify(True)
            wait_for(lambda: get(plugin, "/readyz") == (200, "ok\n"), "the process to be ready")

    def test_plugin_without_a_driver_is_healthy_and_not_ready(self, kubeconfig: Path) -> None:
        with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as plugin:
            plugin.node.unload_driver(Return.LIBRARY_NOT_FOUND)
            plugin.start("kubeletplugin.serve: started", "the NVIDIA driver is not ready: ")
            assert get(plugin, "/healthz") == (200, "ok\n")
            assert "LIBRARY_NOT_FOUND" in get(plugin, "/readyz")[1]

    def test_a_spec_of_all_containers_that_cannot_be_written_is_named(self, kubeconfig: Path) -> None:
        with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as plugin:
            plugin.start()
            aside = plugin.cdi.rename(plugin.cdi.with_name("aside"))
            plugin.cdi.write_text("in the way")
            wait_for(lambda: "cdi: the common CDI spec is out of date" in get(plugin, "/readyz")[1], "it to be told")
            plugin.cdi.unlink()
            aside.rename(plugin.cdi)
            wait_for(lambda: "cdi: " not in get(plugin, "/readyz")[1], "it to be right again")

    def test_an_api_server_that_never_answered_is_named(self, tmp_path: Path) -> None:
        with FaultyServer(ApiServerOptions()) as server:
            kubeconfig = server.write_kubeconfig(tmp_path / "config")
            server.faults.refuse_connections()
            with plugin_on(kubeconfig, "--http-endpoint=127.0.0.1:0") as plugin:
                plugin.start()
                assert "api-server: it has not answered yet" in get(plugin, "/readyz")[1]
                assert get(plugin, "/healthz") == (200, "ok\n")
                server.faults.clear()
                with connect(kubeconfig) as client:
                    claim = stored_claim(client, "gpu-0")
                plugin.prepare(claim)
                assert "api-server" not in get(plugin, "/readyz")[1]


class TestContact:
    """When the API server counts as away."""

    def test_api_server_is_away_after_a_long_silence(self) -> None:
        now = [0.0]
        contact = ApiContact(lambda: now[0])
        assert contact.problem() == "it has not answered yet"
        contact.failed("refused")
        assert contact.problem() == "it has not answered yet: refused"
        contact.answered()
        now[0] = 100.0
        contact.failed("refused")
        assert contact.problem() is None
        now[0] = 200.0
        assert contact.problem() == "it has not answered for 200 s: refused"
        contact.answered()
        assert contact.problem() is None


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (PrepareError("x"), "claim"),
        (RecordError("x"), "record"),
        (NoDriverError("x"), "no_driver"),
        (HungError(Hang("nvmlInit", "GPU-0", 10.0, 10.0)), "hung"),
        (StoppedError("x"), "stopped"),
        (ApiError("x"), "api_server"),
        (UnreachableError("x"), "api_server"),
        (NvmlError(Return.UNKNOWN, "nvmlInit", ""), "nvml"),
        (OSError("x"), "storage"),
        (ZeroDivisionError("x"), "internal"),
    ],
)
def test_errors_are_counted_by_whose_fault_they_are(error: Exception, label: str) -> None:
    assert error_type(error) == label
    registry = new_registry()
    metrics = PluginMetrics(registry, POOL)
    with pytest.raises(type(error)), metrics.request(UNPREPARE):
        raise error
    labels = {"driver": "gpu.nvidia.com", "error_type": label}
    assert registry.get_sample_value("nvidia_dra_node_unprepare_errors_total", labels) == 1.0
    succeeded = {"driver": "gpu.nvidia.com", "operation": UNPREPARE}
    assert registry.get_sample_value("nvidia_dra_requests_total", succeeded) == 0.0
