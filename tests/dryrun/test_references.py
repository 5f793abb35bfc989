# SPDX-License-Identifier: Apache-2.0
"""Objects to which workloads refer, and which only the cluster has."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import DryRun, Write, gpu, slice_of
from .kinds import CLAIM_TEMPLATE, MANIFESTS
from .test_kinds import INSTANCE_TYPE, MACHINE_OF_TYPE, stream
from .test_newer_server import DEVICE_CLASS, served

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
TRAINER = "/apis/trainer.kubeflow.org"
TYPES = "/apis/instancetype.kubevirt.io"
RUNTIME = f"{TRAINER}/v1alpha1/clustertrainingruntimes/torch"
NOT_FOUND: JSON = {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"}
FORBIDDEN: JSON = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}


def preferred(group: str, version: str) -> JSON:
    return {"kind": "APIGroup", "name": group, "preferredVersion": {"groupVersion": f"{group}/{version}"}}


def ask(
    documents: dict[str, JSON | str], text: str, dryrun: DryRun, write: Write, folder: Path, *command: str
) -> tuple[int, str]:
    """What the command answers in a cluster that has the documents and a node with 8 GPUs."""
    objects: dict[str, JSON] = {
        "nodes": {"metadata": {"name": "a"}},
        "deviceclasses": {**DEVICE_CLASS, "spec": {"extendedResourceName": "nvidia.com/gpu"}},
        "resourceslices": slice_of("a", *(gpu(f"gpu-{number}") for number in range(8))),
    }
    with served(documents, **objects) as server:
        config = server.write_kubeconfig(folder / "config")
        code, out, err = dryrun(*command, write("manifest.yaml", text), "--kubeconfig", config)
    return code, out + err


@pytest.mark.parametrize(("nodes", "status"), [(1, 0), (2, 1)])
def test_runtime_of_the_cluster_is_read(nodes: int, status: int, dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    job, runtime = MANIFESTS["TrainJob with ClusterTrainingRuntime"](nodes)
    documents: dict[str, JSON | str] = {TRAINER: preferred("trainer.kubeflow.org", "v1alpha1"), RUNTIME: runtime}
    code, said = ask(documents, stream(CLAIM_TEMPLATE, job), dryrun, write, tmp_path)
    assert code == status, said
    assert "TrainJob train, node" in said


def test_instance_type_of_the_cluster_is_read(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    place = f"{TYPES}/v1beta1/virtualmachineclusterinstancetypes/gpus"
    nine = {"gpus": [{"name": f"gpu-{number}", "deviceName": "nvidia.com/gpu"} for number in range(9)]}
    for spec, status in (({"gpus": INSTANCE_TYPE["spec"]["gpus"]}, 0), (nine, 1)):
        documents: dict[str, JSON | str] = {
            TYPES: preferred("instancetype.kubevirt.io", "v1beta1"),
            place: {**INSTANCE_TYPE, "spec": spec},
        }
        code, said = ask(documents, stream(MACHINE_OF_TYPE), dryrun, write, tmp_path)
        assert code == status, said


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ({TRAINER: NOT_FOUND}, "is neither among the files nor in the cluster"),
        ({RUNTIME: NOT_FOUND}, "is neither among the files nor in the cluster"),
        (
            {RUNTIME: FORBIDDEN},
            "is not among the files, and to get clustertrainingruntimes.trainer.kubeflow.org in the cluster is not"
            " allowed",
        ),
    ],
    ids=["no-such-kind", "no-such-object", "forbidden"],
)
@pytest.mark.parametrize("command", ["fit", "lint"])
def test_runtime_that_cannot_be_read_makes_the_answer_uncertain(
    command: str, documents: dict[str, JSON | str], reason: str, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    job = MANIFESTS["TrainJob with ClusterTrainingRuntime"](1)[0]
    there = {TRAINER: preferred("trainer.kubeflow.org", "v1alpha1"), **documents}
    code, said = ask(there, stream(job), dryrun, write, tmp_path, command)
    assert code == 3, said
    assert f"ClusterTrainingRuntime torch, which has its pod templates, {reason}" in said
