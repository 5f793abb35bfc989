# SPDX-License-Identifier: Apache-2.0
"""What shared GPUs need of the node."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.policy import Enforcement, GpuRule, NodePolicy
from kubeletplugin.check.sharing import setting_findings, share_findings
from kubeletplugin.checkfacts import CheckFacts
from kubeletplugin.claims.records import read_records
from kubeletplugin.drivers import gpu_driver
from kubeletplugin.features.mps.check import mps_findings
from kubeletplugin.features.mps.services import MpsServices
from kubeletplugin.features.time_slicing import time_slicing_findings
from kubeletplugin.finding import CheckResult
from kubeletplugin.node.node import Node
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.claims import mps, time_slicing
from tests.support.mps import mps_of

from .support import levels

pytestmark = pytest.mark.node

SMI, CONTROL = "/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Plugin(Path(name), ApiServer())
        yield made
        made.stop()


def node_of(plugin: Plugin, boot_id: str = "boot-1") -> Node:
    """The node as the command sees it, whose driver is at /host on the host."""
    folders = plugin.place.folders
    hardware = replace(folders.hardware, host_driver_root=Path("/host"))
    return Node("node-a", boot_id, replace(folders, hardware=hardware))


def facts_of(node: Node, policy: NodePolicy | None = None) -> CheckFacts:
    records, unreadable = read_records(node.folders.records, gpu_driver())
    assert not unreadable
    return CheckFacts(node, policy or NodePolicy(), tuple(records), node.folders.hardware.inventory())


def sharing_findings(node: Node) -> list[CheckResult]:
    """The results of the features' checks."""
    facts = facts_of(node)
    return [*time_slicing_findings(facts), *mps_findings(facts)]


def shares(node: Node, policy: NodePolicy) -> list[CheckResult]:
    return list(share_findings(facts_of(node, policy)))


def test_shares_that_cannot_be_enforced_are_named_with_the_reason(plugin: Plugin) -> None:
    node, rule = node_of(plugin), GpuRule(indexes=(0,), shares=4, enforce=Enforcement.MPS)
    assert levels(shares(node, NodePolicy((GpuRule(shares=4),), mps=True))) == []
    assert levels(shares(node, NodePolicy((rule,), mps=True))) == [("shares", "pass")]
    (finding,) = shares(node, NodePolicy((rule,)))
    assert finding.text == (
        f"{plugin.gpu(0).uuid}: shares of the GPU cannot be enforced: mps: dra-mps is not enabled (the chart's value"
        " mps.enabled); so each device belongs to one claim"
    )
    assert "(memory-limits: this installation has no hook program" in finding.remedy


def test_a_setting_that_could_not_be_restored_is_reported(plugin: Plugin) -> None:
    driver, claim = gpu_driver(), plugin.api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.engine.prepare(claim)
    assert list(setting_findings(node_of(plugin), driver)) == []
    plugin.node.nvidia_smi.fail(255, "Unknown Error")
    plugin.engine.unprepare(claim)
    (finding,) = setting_findings(node_of(plugin), driver)
    assert finding.text.startswith(
        f"GPU {plugin.gpu(0).uuid} still has the time-slice interval Long of an earlier claim"
    )
    assert (finding.check, str(finding.level)) == ("GPU settings", "warn")
    assert list(setting_findings(node_of(plugin, "boot-2"), driver)) == [], "a boot has undone it"
    plugin.node.nvidia_smi.mend()
    plugin.engine.prepare(plugin.api.add(["gpu-0"]))
    assert list(setting_findings(node_of(plugin), driver)) == []


def test_a_node_is_read(plugin: Plugin) -> None:
    root, node = plugin.node.driver_root, node_of(plugin)
    assert levels(sharing_findings(node)) == [("time-slicing", "pass")]
    with mps_of(plugin.root, plugin.node, plugin.root / "mps.log") as supervisor:
        for device, sharing in (("gpu-0", mps()), ("gpu-1", time_slicing("Long"))):
            plugin.engine.prepare(plugin.api.add([device], sharing=sharing))
        assert [one.text for one in sharing_findings(node)] == [SMI, CONTROL]
        supervisor.stop()
        _, away = sharing_findings(node)
        assert "no dra-mps answers" in away.text
        for path in (SMI, CONTROL):
            (root / path.lstrip("/")).unlink()
        texts = [one.text for one in sharing_findings(node)]
        assert all(" below /host, so " in text and "; 1 claims on this node need it" in text for text in texts)
    shutil.rmtree(node.of(MpsServices).files.folder)
    assert levels(sharing_findings(node)) == [("time-slicing", "fail"), ("mps", "fail")]
