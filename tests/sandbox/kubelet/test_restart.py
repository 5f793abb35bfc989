# SPDX-License-Identifier: Apache-2.0
"""What a new kubelet makes of what the last one left."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.sandbox.kubelet import Kubelet, KubeletOptions
from dra_driver.sandbox.kubelet.state import ClaimInfo

from .conftest import WriteCdi
from .memory_cluster import MemoryCluster
from .scripted_plugin import DRIVER, ScriptedPlugin


@pytest.fixture
def plugin(root: Path) -> Iterator[ScriptedPlugin]:
    """A plugin that was there before kubelet and stays longer."""
    (root / "plugins_registry").mkdir()
    with ScriptedPlugin(root) as running:
        yield running


def run_pod(options: KubeletOptions, cluster: MemoryCluster, *names: str) -> tuple[ClaimInfo, ...]:
    """Run pods that share the claim `gpu` in a kubelet of their own; what that knew when it ended."""
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        for name in names:
            cluster.run_pod(name, "gpu")
            kubelet.wait_pod_running("default", name)
        return kubelet.claims()


def test_a_checkpointed_claim_is_prepared_again_for_its_pod_and_not_for_the_next(
    options: KubeletOptions, cluster: MemoryCluster, plugin: ScriptedPlugin, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    run_pod(options, cluster, "first")
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_pod_running("default", "first")
        cluster.run_pod("second", "gpu")
        kubelet.wait_pod_running("default", "second")
        (claim,) = kubelet.claims()
        container = kubelet.container("default", "second", "main")
    assert plugin.called("Prepare") == [("gpu",)] * 2
    assert claim.pods == {"uid-first", "uid-second"}
    # the second answer is appended to the first; the runtime injects a repeated name once
    assert [device.device for device in claim.all_devices] == ["dev-gpu"] * 2
    assert container is not None
    assert container.env["CLAIM"] == "uid-gpu"


def test_claims_of_pods_that_went_while_no_kubelet_was_there_are_unprepared(
    options: KubeletOptions, cluster: MemoryCluster, plugin: ScriptedPlugin, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    run_pod(options, cluster, "pod")
    cluster.force_delete("pod")
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait(lambda: kubelet.claims() == (), what="no claims")
        assert plugin.called("Unprepare") == [("gpu",)]


def test_claims_are_in_the_checkpoint_before_the_plugin_is_asked(
    options: KubeletOptions, cluster: MemoryCluster, plugin: ScriptedPlugin, cdi: WriteCdi
) -> None:
    seen: list[str] = []

    def look(claims: object) -> dict[str, object]:
        seen.append(options.checkpoint.read_text())
        raise RuntimeError("killed half way")

    plugin.prepare = look
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        cluster.run_pod("pod", "gpu")
        kubelet.wait_event("FailedPrepareDynamicResources")
    assert "uid-gpu" in seen[0]
    cluster.force_delete("pod")
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait(lambda: kubelet.claims() == (), what="no claims")
    assert plugin.called("Unprepare") == [("gpu",)]


def test_a_new_kubelet_prepares_the_claims_of_its_pods_again(
    options: KubeletOptions, cluster: MemoryCluster, plugin: ScriptedPlugin, cdi: WriteCdi
) -> None:
    cdi("uid-gpu")
    (before,) = run_pod(options, cluster, "pod")
    with Kubelet(options, cluster) as kubelet:
        kubelet.wait_registered(DRIVER)
        assert [replace(claim, devices={}, prepared=True) for claim in kubelet.claims()] == [
            replace(before, devices={})
        ]
        kubelet.wait_pod_running("default", "pod")
        assert plugin.called("Prepare") == [("gpu",)] * 2
