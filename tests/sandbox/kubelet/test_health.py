# SPDX-License-Identifier: Apache-2.0
"""Device health: what counts for how long, and the streams it comes by."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sandbox.kubelet import Health, Kubelet, KubeletOptions, Periods
from dra_driver.sandbox.kubelet.health import PluginHealth
from dra_driver.sandbox.kubelet.journal import Journal
from dra_driver.sandbox.kubelet.plugin import HealthReport
from dra_driver.sandbox.kubelet.wire import HEALTH_V1, HEALTH_V1ALPHA1, DeviceHealth

from .conftest import WriteCdi
from .memory_cluster import MemoryCluster
from .scripted_plugin import ALL_SERVICES, DRIVER, ScriptedPlugin

SICK = DeviceHealth(Health.UNHEALTHY, "XID 79")


@pytest.fixture
def watch() -> PluginHealth:
    return PluginHealth(Periods(), Journal(), lambda *_: None)


def report(health: Health, timeout: int = 0, message: str = "") -> HealthReport:
    return {("pool", "dev"): DeviceHealth(health, message, timeout)}


@pytest.mark.parametrize(("timeout", "counts"), [(0, 30.0), (-5, 30.0), (90, 90.0)])
def test_report_is_valid_until_its_timeout(timeout: int, counts: float) -> None:
    now = 7.0
    health = PluginHealth(Periods(), Journal(), lambda *_: None, lambda: now)
    health.update(DRIVER, report(Health.UNHEALTHY, timeout, "XID 79"))
    now = 7.0 + counts
    assert health.get(DRIVER, "pool", "dev") == SICK
    now = 7.1 + counts
    assert health.get(DRIVER, "pool", "dev") == DeviceHealth(Health.UNKNOWN)


def test_only_another_state_is_a_change(watch: PluginHealth) -> None:
    changes = [
        watch.update(DRIVER, report(health, message=message))
        for health, message in [
            (Health.HEALTHY, ""),
            (Health.HEALTHY, ""),
            (Health.UNHEALTHY, ""),
            (Health.UNHEALTHY, "why"),
        ]
    ]
    assert [bool(changed) for changed in changes] == [True, False, True, True]


def test_drivers_do_not_know_each_others_devices(watch: PluginHealth) -> None:
    watch.update(DRIVER, report(Health.HEALTHY))
    assert watch.get("other.example.com", "pool", "dev").health is Health.UNKNOWN


def device(health: int, message: str = "", name: str = "dev-gpu") -> dict[str, Any]:
    return {"device": {"pool_name": "node-1", "device_name": name}, "health": health, "message": message}


def wait_health(kubelet: Kubelet, health: Health) -> None:
    kubelet.wait(lambda: kubelet.health(DRIVER, "node-1", "dev-gpu").health is health, what=f"dev-gpu {health}")


@pytest.mark.parametrize(
    ("services", "package"),
    [(ALL_SERVICES, HEALTH_V1), (ALL_SERVICES[:2] + ALL_SERVICES[3:], HEALTH_V1ALPHA1)],
)
def test_the_best_advertised_stream_is_followed(
    kubelet: Kubelet, root: Path, services: Sequence[str], package: str
) -> None:
    with ScriptedPlugin(root, services=services) as plugin:
        plugin.report(device(1))
        wait_health(kubelet, Health.HEALTHY)
        plugin.report(device(2))
        wait_health(kubelet, Health.UNHEALTHY)
        assert plugin.health_streams == [package]


def test_the_end_of_a_stream_clears_what_it_said_and_another_is_begun(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root, services=ALL_SERVICES) as plugin:
        plugin.report(device(1))
        wait_health(kubelet, Health.HEALTHY)
        plugin.end_streams()
        wait_health(kubelet, Health.UNKNOWN)
        plugin.report(device(2))
        wait_health(kubelet, Health.UNHEALTHY)
        assert len(plugin.health_streams) == 2


def test_a_plugin_that_advertises_what_it_does_not_serve_is_asked_once(kubelet: Kubelet, root: Path) -> None:
    plugin = ScriptedPlugin(root)
    info = dict(plugin.info())
    plugin.info = lambda: {**info, "supported_versions": list(ALL_SERVICES)}
    with plugin:
        kubelet.wait_event("HealthStreamEnded", DRIVER)
        kubelet.wait_registered(DRIVER)
        plugin.unregister()
        kubelet.wait_deregistered(DRIVER)
    (end,) = kubelet.journal.entries("HealthStreamEnded", DRIVER)
    assert end.message.startswith("rpc error: code = Unimplemented")


def test_the_newest_instance_is_the_one_that_is_heard(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root, suffix="-old", services=ALL_SERVICES) as old:
        old.report(device(1))
        wait_health(kubelet, Health.HEALTHY)
        with ScriptedPlugin(root, suffix="-new", services=ALL_SERVICES) as new:
            new.report(device(2))
            wait_health(kubelet, Health.UNHEALTHY)
        old.report(device(1))
        wait_health(kubelet, Health.HEALTHY)


def test_health_shows_in_the_status_of_the_pods_that_have_the_device(
    options: KubeletOptions, cluster: MemoryCluster, root: Path, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    unhurried = replace(options, periods=replace(options.periods, pod_resync=3600.0))
    with Kubelet(unhurried, cluster) as kubelet, ScriptedPlugin(root, services=ALL_SERVICES) as plugin:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu", request="gpu")
        kubelet.wait_pod_running("default", "pod")

        def allocated() -> Any:
            return cluster.status("pod")["containerStatuses"][0]["allocatedResourcesStatus"]

        resource = {"resourceID": "example.com/claim=uid-gpu"}
        assert allocated() == [{"name": "claim:gpu/gpu", "resources": [{**resource, "health": "Unknown"}]}]
        plugin.report(device(2, "XID 79"), device(1, name="of-nobody"))
        sick = {**resource, "health": "Unhealthy", "message": "XID 79"}
        kubelet.wait(lambda: allocated() == [{"name": "claim:gpu/gpu", "resources": [sick]}], what="a sick GPU")
