# SPDX-License-Identifier: Apache-2.0
"""What a new kubelet makes of what the last one left."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet import ClaimInfo, Kubelet, Options

from .conftest import WriteCdi
from .memory_cluster import MemoryCluster
from .scripted_plugin import DRIVER, ScriptedPlugin


@pytest.fixture
def plugin(root: Path) -> Iterator[ScriptedPlugin]:
    """A plugin that was there before kubelet and stays longer."""
    (root / "plugins_registry").mkdir()
    with ScriptedPlugin(root) as running:
        yield running


@pytest.fixture
def lasting(options: Options, cdi: WriteCdi) -> Options:
    """Options with which containers go on when kubelet ends."""
    cdi("uid-gpu")
    return replace(options, containers_survive=True)


def run_pod(options: Options, cluster: MemoryCluster, *names: str) -> tuple[ClaimInfo, ...]:
    """Run pods that share the claim `gpu` in a kubelet of their own; what that knew when it ended."""
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        for name in names:
            cluster.run_pod(name, "gpu")
            kubelet.wait_pod_running("default", name)
        return kubelet.claims()


def test_a_running_pod_is_taken_over_without_another_prepare(
    lasting: Options, cluster: MemoryCluster, plugin: ScriptedPlugin
) -> None:
    (before,) = run_pod(lasting, cluster, "pod")
    with Kubelet(lasting, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        kubelet.wait_pod_running("default", "pod")
        assert kubelet.claims() == (replace(before, prepared=False),)
        assert plugin.called("Prepare") == [("gpu",)]
        cluster.ask_to_delete("pod")
        kubelet.wait_pod_gone("default", "pod")
        assert plugin.called("Unprepare") == [("gpu",)]


def test_another_pod_of_a_checkpointed_claim_has_it_prepared_again(
    lasting: Options, cluster: MemoryCluster, plugin: ScriptedPlugin
) -> None:
    run_pod(lasting, cluster, "first")
    with Kubelet(lasting, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("second", "gpu")
        kubelet.wait_pod_running("default", "second")
        (claim,) = kubelet.claims()
        container = kubelet.container("default", "second", "main")
    assert plugin.called("Prepare") == [("gpu",)] * 2
    assert claim.pods == {"uid-first", "uid-second"}
    # the second answer is appended to the first; the runtime injects a repeated name once
    assert [device.device for device in claim.all_devices] == ["dev-gpu"] * 2
    assert container is not None
    assert container.env.count("CLAIM=uid-gpu") == 1


def test_claims_of_pods_that_went_while_no_kubelet_was_there_are_unprepared(
    lasting: Options, cluster: MemoryCluster, plugin: ScriptedPlugin, root: Path
) -> None:
    run_pod(lasting, cluster, "pod")
    cluster.force_delete("pod")
    with Kubelet(lasting, cluster) as kubelet:
        kubelet.wait(lambda: kubelet.claims() == (), what="no claims")
        kubelet.wait_event("OrphanRemoved", "uid-pod")
        assert plugin.called("Unprepare") == [("gpu",)]
    assert list((root / "containers").iterdir()) == []


def test_claims_are_in_the_checkpoint_before_the_plugin_is_asked(
    lasting: Options, cluster: MemoryCluster, plugin: ScriptedPlugin
) -> None:
    seen: list[str] = []

    def look(claims: object) -> dict[str, object]:
        seen.append(lasting.checkpoint.read_text())
        raise RuntimeError("killed half way")

    plugin.prepare = look
    with Kubelet(lasting, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_event("FailedPrepareDynamicResources")
    assert "uid-gpu" in seen[0]
    cluster.force_delete("pod")
    with Kubelet(lasting, cluster) as kubelet:
        kubelet.wait(lambda: kubelet.claims() == (), what="no claims")
    assert plugin.called("Unprepare") == [("gpu",)]


def test_without_surviving_containers_a_new_kubelet_is_like_a_node_that_booted(
    lasting: Options, cluster: MemoryCluster, plugin: ScriptedPlugin
) -> None:
    booting = replace(lasting, containers_survive=False)
    run_pod(booting, cluster, "pod")
    with Kubelet(booting, cluster) as kubelet:
        kubelet.wait_pod_running("default", "pod")
    assert plugin.called("Prepare") == [("gpu",)] * 2
