# SPDX-License-Identifier: Apache-2.0
"""What shared GPUs need of the node."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import Enforcement, GpuRule, NodePolicy
from kubeletplugin.check.sharing import SharingFacts, read_sharing, share_findings, sharing_findings
from kubeletplugin.options import Node
from tests.kubeletplugin.inside import ApiServer, Plugin
from tests.support.claims import mps, time_slicing
from tests.support.mps import mps_of

from .support import levels

SMI, CONTROL = "/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"
GOOD = SharingFacts("/", SMI, CONTROL)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (GOOD, [("time-slicing", "pass")]),
        (replace(GOOD, smi=None), [("time-slicing", "warn")]),
        (replace(GOOD, smi=None, intervals=2), [("time-slicing", "fail")]),
        (replace(GOOD, enabled=True), [("time-slicing", "pass"), ("mps", "pass")]),
        (replace(GOOD, enabled=True, mps_control=None), [("time-slicing", "pass"), ("mps", "fail")]),
        (replace(GOOD, enabled=True, supervisor="away"), [("time-slicing", "pass"), ("mps", "warn")]),
        (replace(GOOD, enabled=True, supervisor="away", served=1), [("time-slicing", "pass"), ("mps", "fail")]),
        (replace(GOOD, served=1), [("time-slicing", "pass"), ("mps", "fail")]),
    ],
)
def test_what_is_missing_is_a_failure_where_claims_need_it(
    facts: SharingFacts, expected: list[tuple[str, str]]
) -> None:
    assert levels(sharing_findings(facts)) == expected
    for finding in sharing_findings(facts):
        assert ("claims on this node need it" in finding.text) == (
            str(finding.level) == "fail" and bool(facts.intervals or facts.served)
        )


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        made = Plugin(Path(name), ApiServer())
        yield made
        made.stop()


def node_of(plugin: Plugin) -> Node:
    root = plugin.node.driver_root
    hardware = Hardware(plugin.node.nvml, root, Path("/host"), root, root / "proc", root / "sys", root)
    return Node(plugin.root / "registry", plugin.root, plugin.cdi, plugin.root / "shm", hardware)


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


def test_a_node_is_read(plugin: Plugin) -> None:
    root, node = plugin.node.driver_root, node_of(plugin)
    assert read_sharing(node) == replace(GOOD, driver_root="/host")
    with mps_of(plugin.root, plugin.node, plugin.root / "mps.log") as supervisor:
        for device, sharing in (("gpu-0", mps()), ("gpu-1", time_slicing("Long"))):
            plugin.lifecycle.prepare(plugin.api.add([device], sharing=sharing))
        needed = replace(GOOD, driver_root="/host", intervals=1, served=1, enabled=True)
        assert read_sharing(node) == needed
        supervisor.stop()
        assert "no dra-mps answers" in str(read_sharing(node).supervisor)
        for path in (SMI, CONTROL):
            (root / path.lstrip("/")).unlink()
        assert (read_sharing(node).smi, read_sharing(node).mps_control) == (None, None)
