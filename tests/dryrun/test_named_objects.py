# SPDX-License-Identifier: Apache-2.0
"""Objects of the cluster that the command line names, as kubectl names them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.references import CLAIM, TEMPLATE, references_of
from dra_driver.kube.kinds import DEPLOYMENTS, NODES
from dra_driver.process.command import InputError
from tests.support.apiserver import CLAIMS, SLICES, embedded

from .conftest import DryRun, Write, gpu, install_classes, slice_of
from .test_cluster import TEMPLATES
from .test_command import claim
from .test_rollout import TEMPLATE as ONE_GPU
from .test_rollout import workload
from .test_whole_pod import node

KEYS = {
    "pod/a": ("", "Pod"),
    "po/a": ("", "Pod"),
    "deploy/a": ("apps", "Deployment"),
    "deployments.apps/a": ("apps", "Deployment"),
    "job/a": ("batch", "Job"),
    "job.batch.volcano.sh/a": ("batch.volcano.sh", "Job"),
    "rayjobs/a": ("ray.io", "RayJob"),
    "claim/a": CLAIM,
    "resourceclaims/a": CLAIM,
    "template/a": TEMPLATE,
}


def named_claim(name: str) -> dict[str, Any]:
    return {**yaml.safe_load(claim()), "metadata": {"name": name}}


@pytest.mark.parametrize("text", KEYS)
def test_types_have_the_names_of_kubectl(text: str) -> None:
    assert references_of([text])[text].key == KEYS[text]


def test_existing_files_and_paths_are_not_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pod").mkdir()
    assert references_of(["pod/train", "manifests/pod.yaml", "-", "/etc/pod/a"]) == {}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["pod", "train"], "an object of the cluster is named pod/train"),
        (["deploy"], "an object of the cluster is named deploy/NAME"),
        (["node/a"], "a node is not placed: `dra-dryrun gpus a` shows its GPUs"),
        (["configmap/a"], "configmap is not a type that fit reads (pod, deployment,"),
    ],
)
def test_other_forms_are_errors_with_the_remedy(words: list[str], text: str, dryrun: DryRun) -> None:
    with pytest.raises(InputError) as error:
        references_of(words)
    assert text in error.value.message
    code, _, err = dryrun(*words)
    assert code == 2
    assert text in err


def test_named_objects_need_a_cluster(dryrun: DryRun) -> None:
    code, _, err = dryrun("deploy/serve")
    assert code == 2
    assert "deploy/serve: no cluster is configured: set --kubeconfig or KUBECONFIG, or use --slices" in err


@pytest.mark.cluster
def test_workloads_claims_and_templates_are_read_from_the_cluster(dryrun: DryRun, tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, kubeconfig, client):
        install_classes(client)
        value = node("a", "4")
        client.create(NODES, value)
        client.update(NODES, {**client.get(NODES, "a"), "status": value["status"]}, subresource="status")
        client.create(SLICES, slice_of("a", *(gpu(f"gpu-{number}") for number in range(4))))
        client.create(TEMPLATES, ONE_GPU, "default")
        client.create(CLAIMS, named_claim("shared"), "default")
        client.create(DEPLOYMENTS, workload(replicas=2), "default")
        code, out, err = dryrun("deploy/web", "claim/shared", "--kubeconfig", kubeconfig)
        assert code == 0, out + err
        assert "fits  Deployment default/web, pod 2 of 2: on node a" in out
        assert "fits  ResourceClaim default/shared: on node a" in out
        code, out, err = dryrun("template/one-gpu", "--kubeconfig", kubeconfig)
        assert code == 0, out + err
        assert "fits  ResourceClaimTemplate default/one-gpu: on node a" in out
        code, _, err = dryrun("statefulset/web", "--kubeconfig", kubeconfig)
        assert code == 2
        assert "there is no StatefulSet default/web in cluster http" in err


def test_named_objects_are_found_in_files(dryrun: DryRun, write: Write) -> None:
    items = [slice_of("a", gpu("gpu-0")), named_claim("mine")]
    slices = write("slices.json", {"apiVersion": "v1", "kind": "List", "items": items})
    code, out, _ = dryrun("claim/mine", "--slices", slices)
    assert code == 0
    assert "fits  ResourceClaim mine: on node a" in out
    code, _, err = dryrun("claim/other", "--slices", slices)
    assert code == 2
    assert "there is no ResourceClaim default/other in" in err


def test_help_is_a_command(dryrun: DryRun) -> None:
    assert dryrun("help")[1] == dryrun("--help")[1]
    assert "Usage: dra-dryrun capacity" in dryrun("help", "capacity")[1].replace("pytest", "dra-dryrun")
    code, _, err = dryrun("help", "fitt")
    assert code == 2
    assert "there is no command 'fitt' (there is fit, " in err
