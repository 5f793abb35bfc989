# SPDX-License-Identifier: Apache-2.0
"""How the labels of a node reach node feature discovery."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from controller.node.labels import NODE_NAME_LABEL, FeatureFile, Labeler, LabelTiming, NodeFeature
from dra_driver.gpu.labels import Labels
from dra_driver.kube.api import ApiClient, ApiError
from dra_driver.kube.kinds import NAMESPACES, NODE_FEATURES, ROLES
from tests.support.apiserver import embedded, serve_node_features
from tests.support.waiting import wait_for

pytestmark = pytest.mark.cluster

# NodeFeature objects

SPACE, ROLE = "gpus", "labels"


@pytest.fixture
def nfd(tmp_path: Path) -> Iterator[tuple[ApiClient, NodeFeature]]:
    """A client of a server with the kind NodeFeature and the Role, and the object of node-a."""
    with embedded(tmp_path) as (_, _, admin):
        serve_node_features(admin)
        admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        role = {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": {"name": ROLE}, "rules": []}
        admin.create(ROLES, role, SPACE)
        yield admin, NodeFeature(admin, "node-a", f"{SPACE}/{ROLE}")


def test_the_object_is_written_only_if_it_differs_and_ends_with_its_role(nfd: tuple[ApiClient, NodeFeature]) -> None:
    admin, output = nfd

    def stored() -> list[tuple[str, str, Mapping[str, str], str]]:
        return [
            (meta["name"], meta["labels"][NODE_NAME_LABEL], one["spec"]["labels"], meta["resourceVersion"])
            for one in admin.list(NODE_FEATURES, namespace=SPACE).items
            for meta in [one["metadata"]]
        ]

    output.write({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.clique": "x.1"})
    (first,) = stored()
    assert first[:3] == ("nvidia.com-node-a", "node-a", {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.clique": "x.1"})
    output.write({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.clique": "x.1"})
    assert stored() == [first]
    output.write({"nvidia.com/gpu.count": "7"})
    assert [one[2] for one in stored()] == [{"nvidia.com/gpu.count": "7"}]
    admin.delete(ROLES, ROLE, SPACE)
    wait_for(lambda: not stored(), "the object to be deleted")


def test_a_cluster_without_node_feature_discovery_is_an_error_that_names_the_kind(tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, _, admin):
        role = {"apiVersion": ROLES.api_version, "kind": "Role", "metadata": {"name": ROLE}, "rules": []}
        admin.create(ROLES, role, "default")
        with pytest.raises(ApiError, match="nodefeatures"):
            NodeFeature(admin, "node-a", f"default/{ROLE}").write({})


# Feature files


def test_the_file_has_a_line_for_each_label_and_ends_with_the_process_that_wrote_it_last(tmp_path: Path) -> None:
    file = tmp_path / "dra-driver-gpu"
    first, second = FeatureFile(file), FeatureFile(file)
    first.write({"nvidia.com/gpu.count": "8", "nvidia.com/cuda.driver.rev": ""})
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "nvidia.com/gpu.count=8",
        "nvidia.com/cuda.driver.rev=",
    ]
    inode = file.stat().st_ino
    first.write({"nvidia.com/gpu.count": "8", "nvidia.com/cuda.driver.rev": ""})
    assert file.stat().st_ino == inode
    second.write({"nvidia.com/gpu.count": "7"})
    first.remove()
    assert "gpu.count=7" in file.read_text(encoding="utf-8")
    second.remove()
    assert list(tmp_path.iterdir()) == []
    second.remove()


# The thread


class Recorded:
    """An output that keeps what it is told, and fails as often as it is asked to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.written: list[Labels] = []

    def write(self, labels: Labels) -> None:
        """Fail, or keep the labels."""
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(labels)


def test_labels_are_written_when_they_change_and_again_after_a_failure() -> None:
    current: list[Labels | None] = [None]

    def labels() -> Labels | None:
        if current[0] == {}:
            raise KeyError("a defect")
        return current[0]

    unexpected: list[str] = []
    output = Recorded(ApiError("unavailable"), OSError("read-only"), KeyError("a defect"))
    timing = LabelTiming(first_retry=0.001, longest_retry=0.002)
    labeler = Labeler(output.write, labels, unexpected.append, timing)
    labeler.start()
    for value in ("1", "2"):
        current[0] = {"nvidia.com/gpu.count": value}
        labeler.wake()
        wait_for(lambda: current[0] in output.written, "the labels")
        labeler.wake()
    current[0] = {}
    labeler.wake()
    wait_for(lambda: len(unexpected) == 2, "the defect to be counted")
    labeler.stop()
    assert output.written == [{"nvidia.com/gpu.count": "1"}, {"nvidia.com/gpu.count": "2"}]
    assert unexpected == ["write labels", "make labels"]
