# SPDX-License-Identifier: Apache-2.0
"""Several instances of a driver, lost and found connections, and what becomes of the driver's ResourceSlices."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.kube.api import UnreachableError
from dra_driver.sandbox.kubelet import ClaimRef, Kubelet, KubeletOptions
from dra_driver.sandbox.kubelet.state import ClaimError
from dra_driver.sandbox.kubelet.wire import DRA_V1, DRA_V1BETA1

from .memory_cluster import NODE, MemoryCluster
from .scripted_plugin import DRIVER, ScriptedPlugin

CLAIM = ClaimRef("default", "claim", "uid-claim")


@pytest.mark.parametrize(
    ("advertised", "known", "package"),
    [
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], ["v1.DRAPlugin", "v1beta1.DRAPlugin"], DRA_V1),
        (["v1beta1.DRAPlugin"], ["v1.DRAPlugin", "v1beta1.DRAPlugin"], DRA_V1BETA1),
        (["v1.DRAPlugin", "v1beta1.DRAPlugin"], ["v1beta1.DRAPlugin"], DRA_V1BETA1),
    ],
)
def test_calls_use_the_service_that_was_chosen(
    options: KubeletOptions, cluster: MemoryCluster, root: Path, advertised: list[str], known: list[str], package: str
) -> None:
    plugin = ScriptedPlugin(root, services=advertised)
    with Kubelet(replace(options, services=tuple(known)), cluster) as kubelet, plugin:
        kubelet.wait_registered(DRIVER)
        answer = kubelet.prepare(DRIVER, [CLAIM])
        kubelet.unprepare(DRIVER, [CLAIM])
    assert answer["uid-claim"].devices[0].cdi_ids == ("example.com/claim=uid-claim",)
    assert plugin.calls == [(package, "Prepare", (CLAIM,)), (package, "Unprepare", (CLAIM,))]


def test_calls_go_to_the_newest_connected_instance(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root, suffix="-old") as old:
        kubelet.wait_registered(DRIVER)
        with ScriptedPlugin(root, suffix="-new") as new:
            kubelet.wait_registered(DRIVER, instances=2)
            kubelet.prepare(DRIVER, [CLAIM])
            assert (old.called("Prepare"), new.called("Prepare")) == ([], [("claim",)])
            new.stop_serving()
            kubelet.wait_event("PluginDisconnected", DRIVER)
            kubelet.unprepare(DRIVER, [CLAIM])
            assert old.called("Unprepare") == [("claim",)]
        kubelet.wait_registered(DRIVER)
    kubelet.wait_deregistered(DRIVER)


def test_a_driver_without_plugins_is_not_registered(kubelet: Kubelet) -> None:
    with pytest.raises(ClaimError, match=r"DRA driver gpu\.example\.com is not registered"):
        kubelet.prepare(DRIVER, [CLAIM])


def test_a_call_to_a_plugin_that_is_down_fails_at_once(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        plugin.stop_serving()
        kubelet.wait_event("PluginDisconnected", DRIVER)
        with pytest.raises(ClaimError, match="NodePrepareResources: rpc error: code = Unavailable desc = "):
            kubelet.prepare(DRIVER, [CLAIM])


def test_a_restarted_service_is_found_again_without_a_call(kubelet: Kubelet, root: Path) -> None:
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        plugin.stop_serving()
        kubelet.wait_event("PluginDisconnected", DRIVER)
        plugin.serve()
        kubelet.wait_registered(DRIVER)
    assert len(kubelet.journal.entries("PluginRegistered", DRIVER)) == 1


def test_all_slices_of_the_node_are_deleted_when_kubelet_starts(kubelet: Kubelet, cluster: MemoryCluster) -> None:
    kubelet.wait_ready()
    assert cluster.writes == [("wipe", NODE, "*")]


def test_the_slices_of_a_driver_that_stays_away_are_deleted(
    kubelet: Kubelet, cluster: MemoryCluster, root: Path
) -> None:
    with ScriptedPlugin(root):
        kubelet.wait_registered(DRIVER)
    kubelet.wait_event("SlicesWiped", DRIVER)
    assert ("wipe", NODE, DRIVER) in cluster.writes


def test_a_lost_connection_alone_is_enough_for_that(kubelet: Kubelet, cluster: MemoryCluster, root: Path) -> None:
    with ScriptedPlugin(root) as plugin:
        kubelet.wait_registered(DRIVER)
        plugin.stop_serving()
        kubelet.wait_event("SlicesWiped", DRIVER)
        assert kubelet.plugins(DRIVER)


def test_the_slices_of_a_driver_that_comes_back_in_time_stay(
    options: KubeletOptions, cluster: MemoryCluster, root: Path
) -> None:
    unhurried = replace(options, periods=replace(options.periods, wipe_delay=3600.0))
    with Kubelet(unhurried, cluster) as kubelet:
        kubelet.wait_ready()
        with ScriptedPlugin(root):
            kubelet.wait_registered(DRIVER)
        kubelet.wait_deregistered(DRIVER)
        assert kubelet.pending_wipes() == {DRIVER}
        with ScriptedPlugin(root):
            kubelet.wait_registered(DRIVER)
            assert kubelet.pending_wipes() == set()
    assert cluster.writes == [("wipe", NODE, "*")]


def test_wiping_is_tried_until_the_api_server_takes_it(options: KubeletOptions, cluster: MemoryCluster) -> None:
    cluster.failing = UnreachableError("connection refused")
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_event("ApiFailed", "Node")
        cluster.failing = None
        kubelet.wait_ready()
    assert cluster.nodes[NODE]["labels"]["kubernetes.io/hostname"] == NODE
    assert cluster.nodes[NODE]["status"]["conditions"][0]["type"] == "Ready"
