# SPDX-License-Identifier: Apache-2.0
"""A check that fails as nobody expected is a finding of its own, and all others are made."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kubeletplugin.check import command
from kubeletplugin.check.command import check

from .test_command import Node

pytestmark = pytest.mark.node

BROKEN = {
    "read_driver": "NVIDIA driver",
    "gpu_findings": "GPUs",
    "ask_cluster": "cluster",
    "read_runtime": "container runtime",
    "read_kubelet": "kubelet",
    "folder_findings": "folders",
    "foreign_findings": "other drivers",
    "cdi_findings": "container runtime",
    "kubelet_findings": "kubelet",
    "version_findings": "versions",
}
"""What fails, and the check that says so."""


@pytest.mark.parametrize("name", BROKEN)
def test_the_other_checks_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    node = Node(tmp_path)
    monkeypatch.setattr(command, name, broken)
    arguments = ["--host-root", str(node.host), "--node-name", "node-a", "-o", "json"]
    done = CliRunner().invoke(check, arguments, env=node.environment)
    found = json.loads(done.stdout)["findings"]
    (about,) = (one for one in found if "failed unexpectedly" in one["text"])
    assert about["check"] == BROKEN[name]
    assert about["level"] == "warn"
    assert "ZeroDivisionError('nobody thought of it')" in about["text"]
    assert found[-1]["check"] == "this program"
    assert len(found) > 5
    assert f"check {BROKEN[name]} failed unexpectedly; other work continues" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
