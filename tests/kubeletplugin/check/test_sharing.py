# SPDX-License-Identifier: Apache-2.0
"""What shared GPUs need of the node."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import Enforcement, GpuRule, NodePolicy
from kubeletplugin.check.sharing import (
    mps_finding,
    setting_findings,
    share_findings,
    sharing_findings,
    time_slicing_finding,
)
from kubeletplugin.options import NodeFolders
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.claims import mps, time_slicing
from tests.support.mps import mps_of

from .support import levels

SMI, CONTROL = "/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"
PROGRAM = (CONTROL, CONTROL)


@pytest.mark.parametrize(
    ("found", "claims", "level"),
    [((SMI, SMI), 0, "pass"), ((SMI, SMI), 2, "pass"), (None, 0, "warn"), (None, 2, "fail")],
)
def test_time_slicing_without_its_program_is_a_failure_where_claims_need_it(
    found: tuple[str, str] | None, claims: int, level: str
) -> None:
    finding = time_slicing_finding(found, claims, "/")
    assert (finding.check, str(finding.level)) == ("time-slicing", level)
    assert ("claims on this node need it" in finding.text) == (level == "fail")


@pytest.mark.parametrize(
    ("found", "claims", "problem", "level"),
    [
        (PROGRAM, 0, None, "pass"),
        (None, 0, None, "fail"),
        (PROGRAM, 0, "away", "warn"),
        (PROGRAM, 1, "away", "fail"),
    ],
)
def test_mps_that_is_away_is_a_failure_where_claims_need_it(
    found: tuple[str, str] | None, claims: int, problem: str | None, level: str
) -> None:
    finding = mps_finding(found, claims, problem, "/")
    assert (finding.check, str(finding.level)) == ("mps", level)
    assert ("claims on this node need it" in finding.text) == bool(claims)


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Plugin(Path(name), ApiServer())
        yield made
        made.stop()


def node_of(plugin: Plugin) -> NodeFolders:
    root = plugin.node.driver_root
    hardware = Hardware(plugin.node.nvml, root, Path("/host"), root, root / "proc", root / "sys", root)
    return NodeFolders(plugin.root / "registry", plugin.root, plugin.cdi, plugin.root / "shm", hardware)


def test_shares_that_cannot_be_enforced_are_named_with_the_reason(plugin: Plugin) -> None:
    node, rule = node_of(plugin), GpuRule(indexes=(0,), shares=4, enforce=Enforcement.MPS)
    assert levels(share_findings(node.hardware, NodePolicy((GpuRule(shares=4),), mps=True))) == []
    assert levels(share_findings(node.hardware, NodePolicy((rule,), mps=True))) == [("shares", "pass")]
    (finding,) = share_findings(node.hardware, NodePolicy((rule,)))
    assert finding.text == (
        f"{plugin.gpu(0).uuid}: shares of the GPU cannot be enforced: mps: dra-mps is not enabled (the chart's value"
        " mps.enabled); so each device belongs to one claim"
    )
    assert "(memory-limits: this installation has no hook program" in finding.remedy


def test_a_setting_that_could_not_be_restored_is_reported(plugin: Plugin) -> None:
    node, claim = node_of(plugin), plugin.api.add(["gpu-0"], sharing=time_slicing("Long"))
    plugin.lifecycle.prepare(claim)
    assert list(setting_findings(node, "boot-1")) == []
    plugin.node.nvidia_smi.fail(255, "Unknown Error")
    plugin.lifecycle.unprepare(claim)
    (finding,) = setting_findings(node, "boot-1")
    assert finding.text.startswith(
        f"GPU {plugin.gpu(0).uuid} still has the time-slice interval Long of an earlier claim"
    )
    assert (finding.check, str(finding.level)) == ("GPU settings", "warn")
    assert list(setting_findings(node, "boot-2")) == [], "a boot has undone it"
    plugin.node.nvidia_smi.mend()
    plugin.lifecycle.prepare(plugin.api.add(["gpu-0"]))
    assert list(setting_findings(node, "boot-1")) == []


def test_a_node_is_read(plugin: Plugin) -> None:
    root, node = plugin.node.driver_root, node_of(plugin)
    assert levels(sharing_findings(node)) == [("time-slicing", "pass")]
    with mps_of(plugin.root, plugin.node, plugin.root / "mps.log") as supervisor:
        for device, sharing in (("gpu-0", mps()), ("gpu-1", time_slicing("Long"))):
            plugin.lifecycle.prepare(plugin.api.add([device], sharing=sharing))
        assert [one.text for one in sharing_findings(node)] == [SMI, CONTROL]
        supervisor.stop()
        _, away = sharing_findings(node)
        assert "no dra-mps answers" in away.text
        for path in (SMI, CONTROL):
            (root / path.lstrip("/")).unlink()
        texts = [one.text for one in sharing_findings(node)]
        assert all(" below /host, so " in text and "; 1 claims on this node need it" in text for text in texts)
    shutil.rmtree(node.mps.files)
    assert levels(sharing_findings(node)) == [("time-slicing", "fail"), ("mps", "fail")]
