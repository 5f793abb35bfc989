# SPDX-License-Identifier: Apache-2.0
"""Input that the API server would refuse: unknown fields and names that are there twice, with line and column."""

import textwrap
from pathlib import Path

import pytest

from .conftest import DryRun, Write
from .test_command import claim
from .test_whole_pod import pod

POD = textwrap.dedent("""
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      resourceClaim:
      - {name: gpu, resourceClaimName: wanted}
      containers:
      - name: c
        image: i
        resource: {}
    """)

CLUSTER = textwrap.dedent("""\
    apiVersion: v1
    kind: Node
    metadata: {name: a}
    status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
    ---
    apiVersion: v1
    kind: Pod
    metadata: {name: broken}
    spec:
      nodeName: a
      tolerations: x
      containers: [{name: c, image: i}]
    ---
    apiVersion: resource.k8s.io/v1
    kind: ResourceSlice
    metadata: {name: s}
    spec:
      driver: gpu.nvidia.com
      nodeName: a
      pool: {name: a, generation: 1, resourceSliceCount: 1}
      devices: [{name: gpu-0}]
    """)


def test_unknown_fields_are_errors_with_line_and_column(dryrun: DryRun, write: Write) -> None:
    path = write("pod.yaml", "# a comment\n---" + POD)
    code, out, err = dryrun(path)
    assert (code, out) == (2, "")
    assert f"{path}:7:3: Pod p: spec.resourceClaim: unknown field; did you mean 'resourceClaims'?" in err
    assert f"{path}:12:5: Pod p: spec.containers[0].resource: unknown field; did you mean 'resources'?" in err


def test_mistakes_in_claims_have_a_place_too(dryrun: DryRun, write: Write) -> None:
    path = write("claim.yaml", claim().replace("count: 1", "cuont: 1"))
    code, _, err = dryrun(path)
    assert code == 2
    line = path.read_text(encoding="utf-8").splitlines().index("        cuont: 1") + 1
    assert f"{path}:{line}:9: ResourceClaim wanted: " in err
    assert "cuont: unknown field" in err


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "CronJob"])
def test_pod_templates_of_workloads_are_read_strictly(kind: str, dryrun: DryRun, write: Write) -> None:
    template = {"template": {"spec": {**pod("p")["spec"], "nodeSelectr": {}}}}
    spec = {"jobTemplate": {"spec": template}} if kind == "CronJob" else template
    version = "batch/v1" if kind.endswith("Job") else "apps/v1"
    code, _, err = dryrun(
        write("w.json", {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": spec})
    )
    assert code == 2, err
    assert "template.spec.nodeSelectr: unknown field; did you mean 'nodeSelector'?" in err


def test_two_objects_of_one_name_are_an_error(dryrun: DryRun, write: Write) -> None:
    code, _, err = dryrun(write("twice.yaml", f"{claim()}\n---{claim()}"))
    assert code == 2, err
    assert "there is another ResourceClaim of this name in" in err
    other = claim().replace("name: wanted", "name: wanted, namespace: other")
    assert dryrun(write("two.yaml", f"{claim()}\n---{other}"))[0] == 0
    default = claim().replace("name: wanted", "name: wanted, namespace: default")
    assert dryrun(write("same.yaml", f"{claim()}\n---{default}"))[0] == 2


@pytest.mark.parametrize(("count", "code"), [("1.0", 0), ("1.5", 2)])
def test_whole_numbers_may_be_written_with_a_point(count: str, code: int, dryrun: DryRun, write: Write) -> None:
    assert dryrun(write("claim.yaml", claim().replace("count: 1", f"count: {count}")))[0] == code


def test_a_workload_without_devices_is_told_so(dryrun: DryRun, write: Write) -> None:
    code, out, _ = dryrun(write("pod.json", pod("p")))
    assert code == 0, out
    assert "the pod asks for no devices" in out


def test_folders_may_hold_other_files_and_named_ones_are_errors(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "values.yaml").write_text("image: example.com\n", encoding="utf-8")
    (folder / "claim.yaml").write_text(claim(), encoding="utf-8")
    code, _, err = dryrun(folder)
    assert code == 0, err
    assert f"{folder / 'values.yaml'} is no Kubernetes object: skipped" in err
    code, _, err = dryrun(folder / "values.yaml")
    assert code == 2, err
    assert "it lacks apiVersion or kind" in err


def test_lint_checks_v1alpha3_as_every_other_version(dryrun: DryRun, write: Write) -> None:
    value = {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourceClaim", "metadata": {"name": "a"}}
    value["spec"] = {"anything": "goes"}
    code, out, _ = dryrun("lint", write("claim.json", value), "--kubernetes-version", "1.33")
    assert code == 1, out
    assert "[unknown-field]" in out


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("tolerations: x", "spec.tolerations: must be a list, not a string"),
        ("affinity: 3", "spec.affinity: must be an object, not a number"),
        ("priorityClassName: {a: b}", "spec.priorityClassName: must be a string, not an object"),
        ("priority: 1.5", "spec.priority: must be an integer, not a number"),
        ("hostNetwork: 1", "spec.hostNetwork: must be true or false, not a number"),
        ("nodeSelector: {zone: 1}", "spec.nodeSelector[zone]: must be a string, not a number"),
        ("overhead: {cpu: much}", "spec.overhead[cpu]: 'much' is not a quantity"),
        ("activeDeadlineSeconds: 99999999999999999999", "spec.activeDeadlineSeconds: does not fit a 64-bit integer"),
    ],
)
def test_value_of_a_wrong_type_is_an_error_with_line_and_column(
    field: str, problem: str, dryrun: DryRun, write: Write
) -> None:
    path = write("pod.yaml", POD.replace("resourceClaim:\n  - {name: gpu, resourceClaimName: wanted}", field))
    code, out, err = dryrun(path)
    assert (code, out) == (2, "")
    assert f"{path}:6:" in err
    assert f": Pod p: {problem}" in err


def test_key_that_is_null_is_an_error(dryrun: DryRun, write: Write) -> None:
    path = write("pod.yaml", POD.replace("resource: {}", "resources: {requests: {null: 1}}"))
    code, _, err = dryrun(path)
    assert code == 2
    assert f"{path}:11:28: is not YAML: while constructing a mapping, found a key that is not text" in err


def test_pod_of_a_cluster_file_that_cannot_be_read_hides_nothing_about_others(dryrun: DryRun, write: Write) -> None:
    cluster = write("cluster.yaml", CLUSTER)
    wanted = write(
        "pod.yaml",
        POD.replace("resource: {}", "resources: {requests: {cpu: 1}}").replace(
            "  resourceClaim:\n  - {name: gpu, resourceClaimName: wanted}\n", ""
        ),
    )
    code, out, err = dryrun(wanted, "--slices", cluster)
    assert code == 2
    assert "fits  Pod p: on node a" in out
    assert f"error: {cluster}:11:3: Pod broken: spec.tolerations: must be a list, not a string" in err
