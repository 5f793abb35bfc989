# SPDX-License-Identifier: Apache-2.0
"""Values that a shell completes, as kubectl asks for them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.dryrun.main import complete
from dra_driver.kube.kinds import NAMESPACES, NODES, PODS
from tests.support.apiserver import SLICES, embedded

from .conftest import DryRun, Write, gpu, slice_of
from .test_whole_pod import pod

Completed = Callable[..., list[str]]


@pytest.fixture
def completed(dryrun: DryRun, capsys: pytest.CaptureFixture[str]) -> Completed:
    """The candidates for the last word, where no cluster is configured."""

    def run(*words: object) -> list[str]:
        complete([str(word) for word in words])
        return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(":")]

    return run


def test_contexts_are_those_of_the_kubeconfig(completed: Completed, write: Write) -> None:
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("prod", "preview", "test")]
    config = write("config", {"apiVersion": "v1", "kind": "Config", "contexts": contexts})
    assert completed("fit", "--kubeconfig", config, "--context", "pr") == ["preview", "prod"]


def test_types_of_nodes_are_completed(completed: Completed) -> None:
    assert {"h100x8", "h100x8-mig"} <= set(completed("capacity", "--with-node", "h100x8"))
    assert "l4x4" in completed("gpus", "--built-in", "l4")


def test_targets_of_a_drain_are_completed(completed: Completed) -> None:
    assert completed("drain", "--built-in", "h100x8/gpu-5") == ["h100x8/gpu-5"]
    assert completed("drain", "--built-in", "NVIDIA H1") == ["NVIDIA H100 80GB HBM3"]
    assert completed("drain", "--health", "ec") == ["ecc"]


@pytest.mark.parametrize("before", ["", "device.driver == 'x' && "])
def test_attributes_in_expressions_are_those_of_the_devices(before: str, completed: Completed) -> None:
    map_of = f"{before}device.attributes['gpu.nvidia.com']."
    assert f"{map_of}profile" in completed("cel", f"{map_of}prof")
    assert completed("cel", f"{before}device.capacity['gpu.nvidia.com'].mem") == [
        f"{before}device.capacity['gpu.nvidia.com'].memory"
    ]
    assert completed("cel", "device.attributes['other.example.com'].") == []


@pytest.mark.cluster
def test_namespaces_and_objects_of_the_cluster_are_completed(completed: Completed, tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, kubeconfig, client):
        client.create(NODES, {"metadata": {"name": "a"}})
        client.create(SLICES, slice_of("a", gpu("gpu-0")))
        client.create(NAMESPACES, {"metadata": {"name": "team-a"}})
        client.create(PODS, pod("train"), "default")
        assert completed("fit", "--kubeconfig", kubeconfig, "-n", "team") == ["team-a"]
        assert completed("fit", "--kubeconfig", kubeconfig, "pod/tr") == ["pod/train"]
        assert completed("fit", "--kubeconfig", kubeconfig, "-n", "team-a", "pod/tr") == []
        product = "device.attributes['gpu.nvidia.com'].pro"
        assert completed("cel", "--kubeconfig", kubeconfig, product) == [f"{product}ductName"]


@pytest.mark.cluster
def test_a_cluster_that_is_away_gives_no_values_and_no_error(completed: Completed, write: Write) -> None:
    away = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    config = write("config", away)
    assert completed("fit", "--kubeconfig", config, "pod/t") == []
    assert completed("fit", "--kubeconfig", config, "-n", "t") == []
