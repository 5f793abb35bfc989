# SPDX-License-Identifier: Apache-2.0
"""CDI specs for releases of container runtimes that cannot read all fields."""

import json
import logging
import uuid
from pathlib import Path

import pytest

from dra_driver.kube.api import ApiClient, ApiError
from dra_driver.kube.kinds import NODES
from kubeletplugin.containers.cdi import BASE_KIND, ContainerEdits, SpecDirectory, base_spec, gpu_edits
from kubeletplugin.containers.common import CommonSpec
from kubeletplugin.containers.runtime import ContainerRuntime, reads_group_ids, reported_runtime
from tests.kubeletplugin.containers.cdi.trees import MAJORS, VERSION, Terminal, kernel, libraries, link
from tests.support.logs import records_of
from tests.support.nodes import driver_root_of

OLD, NEW = "containerd://1.7.12", "containerd://1.7.27"
WITH_GROUP = base_spec(ContainerEdits(additional_gids=(44,)))


@pytest.mark.parametrize(
    ("reported", "reads"),
    [
        ("containerd://1.7.0", False),
        ("containerd://1.7.12", False),
        ("containerd://v1.7.15-k3s1", False),
        ("containerd://1.7.16", True),
        ("containerd://1.7.27", True),
        ("containerd://2.0.0", True),
        ("containerd://2.1.4-k3s1", True),
        ("cri-o://1.32.1", True),
        ("containerd://dev", True),
        ("", True),
    ],
)
def test_releases_that_read_group_ids(reported: str, reads: bool) -> None:
    assert reads_group_ids(reported) == reads


@pytest.mark.node
def test_the_release_is_that_of_the_node(client: ApiClient) -> None:
    name = f"node-{uuid.uuid4().hex[:8]}"
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    assert reported_runtime(client, name) == ""
    status = {"nodeInfo": {"containerRuntimeVersion": OLD, "kubeletVersion": "v1.36.0"}}
    client.patch(NODES, name, {"status": status}, subresource="status")
    assert reported_runtime(client, name) == OLD


def test_group_ids_are_left_out_for_an_old_runtime_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    runtime = ContainerRuntime(lambda: OLD)
    with caplog.at_level(logging.WARNING):
        written = [runtime.readable(WITH_GROUP) for _ in range(3)]
    assert all(one == base_spec(ContainerEdits()) for one in written)
    (record,) = records_of(caplog, "kubeletplugin.containers")
    warning = record.getMessage()
    assert warning.startswith(f"{OLD} cannot read group IDs in CDI specs, so they are left out")
    assert warning.endswith("upgrade containerd to 1.7.16 or newer")


def test_a_spec_without_group_ids_needs_no_request() -> None:
    def report() -> str:
        raise AssertionError("the Node was read")

    spec = base_spec(ContainerEdits(env=("A=b",)))
    assert ContainerRuntime(report).readable(spec) == spec


def test_group_ids_stay_while_the_node_cannot_be_read_and_it_is_read_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0

    def report() -> str:
        if now == 0:
            raise ApiError("no answer")
        return OLD

    runtime = ContainerRuntime(report, lambda: now)
    assert runtime.readable(WITH_GROUP) == WITH_GROUP
    assert "cannot be read from the Node: no answer" in caplog.text
    assert runtime.readable(WITH_GROUP) == WITH_GROUP, "no request for a while"
    now = 10.0
    assert runtime.readable(WITH_GROUP) != WITH_GROUP


def test_after_an_upgrade_of_the_runtime_specs_have_group_ids_again() -> None:
    now, reported = 0.0, OLD
    runtime = ContainerRuntime(lambda: reported, lambda: now)
    assert runtime.readable(WITH_GROUP) != WITH_GROUP
    reported, now = NEW, 300.0
    assert runtime.readable(WITH_GROUP) == WITH_GROUP


@pytest.fixture
def node_root(tmp_path: Path, terminal: Terminal) -> Path:
    """A node whose control node and DRM node belong to a group."""
    root = tmp_path / "node"
    libraries(root, "/usr/lib/x86_64-linux-gnu")
    kernel(root, MAJORS)
    (root / "sys/bus/pci/devices/0000:17:00.0/drm/card0").mkdir(parents=True)
    for path in ("/dev/nvidiactl", "/dev/dri/card0"):
        link(root, path, terminal.path)
    return root


@pytest.mark.parametrize(("reported", "version"), [(OLD, "0.3.0"), (NEW, "0.7.0")])
def test_the_common_spec_has_a_version_that_the_runtime_reads(
    node_root: Path, tmp_path: Path, reported: str, version: str
) -> None:
    spec = CommonSpec(tmp_path / "cdi", driver_root_of(node_root), runtime=ContainerRuntime(lambda: reported))
    spec.write(VERSION)
    written = json.loads(SpecDirectory(spec.directory, BASE_KIND).file().read_text())
    assert written["cdiVersion"] == version
    assert ("additionalGids" in written["containerEdits"]) == (reported == NEW)


def test_the_common_spec_follows_the_runtime(node_root: Path, tmp_path: Path) -> None:
    now, reported = 0.0, OLD
    runtime = ContainerRuntime(lambda: reported, lambda: now)
    spec = CommonSpec(tmp_path / "cdi", driver_root_of(node_root), runtime=runtime)
    spec.write(VERSION)
    reported, now = NEW, 300.0
    runtime.readable(base_spec(gpu_edits(driver_root_of(node_root), 3, "0000:17:00.0").edits))  # of a claim
    spec.keep()
    assert json.loads(SpecDirectory(spec.directory, BASE_KIND).file().read_text())["cdiVersion"] == "0.7.0"
