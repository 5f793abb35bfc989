# SPDX-License-Identifier: Apache-2.0
"""Every values file on every release: valid objects, no complaints by Helm, and the renderings that were reviewed."""

import helm_python
import kubernetes_validate
import pytest
import yaml

from .golden import FOLDER, golden
from .rendering import CHART, JSON, RENDERINGS, VALUES, find, render, render_files

_CRDS = ("monitoring.coreos.com", "cert-manager.io")  # of others; no release of Kubernetes knows them


@pytest.mark.parametrize(("name", "minor"), RENDERINGS)
def test_every_object_is_valid_in_every_release(name: str, minor: int) -> None:
    objects = render(VALUES[name], minor)
    assert objects
    for one in objects:
        if not one["apiVersion"].startswith(_CRDS):
            kubernetes_validate.validate(one, f"1.{minor}", strict=True)


@pytest.mark.parametrize(("name", "minor"), RENDERINGS)
def test_helm_finds_nothing_to_complain_about(name: str, minor: int) -> None:
    report = helm_python.lint(CHART, VALUES[name], strict=True, namespace="gpus", kube_version=f"v1.{minor}.0")
    assert not report["errors"]
    assert not [message for message in report["messages"] if message["severity"] >= 2]


def test_renderings_are_those_that_were_reviewed() -> None:
    """`python -m tests.charts.golden` writes them anew; look at what changed before it is committed."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == dict(golden())


def test_names_of_objects_are_unique_and_fit_where_they_are_used() -> None:
    long = {"fullnameOverride": "a" * 63, "webhook": {"enabled": True}, "resourceQuota": {"create": "always"}}
    for values in (VALUES["everything"], {**VALUES["everything"], **long}):
        objects = render(values)
        names = [(one["kind"], one["metadata"]["name"]) for one in objects]
        assert len(names) == len(set(names))
        assert all(len(one["metadata"]["name"]) <= 63 for one in objects if "namespace" in one["metadata"])


def test_two_releases_do_not_share_objects_of_the_cluster() -> None:
    def of_the_cluster(namespace: str) -> set[tuple[str, str]]:
        values = {"deviceClasses": {"create": False}, "webhook": {"enabled": True}}
        objects = render(values, namespace=namespace)
        return {(one["kind"], one["metadata"]["name"]) for one in objects if "namespace" not in one["metadata"]}

    assert of_the_cluster("a")
    assert not of_the_cluster("a") & of_the_cluster("b")


def test_a_namespace_of_its_own_may_be_named_in_the_values() -> None:
    objects = render({"namespaceOverride": "elsewhere", "fullnameOverride": "gpus"})
    assert {one["metadata"].get("namespace", "elsewhere") for one in objects} == {"elsewhere"}
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for one in objects:
            if one["kind"] == kind:
                assert [subject["namespace"] for subject in one["subjects"]] == ["elsewhere"]
    condition = find(objects, "ValidatingAdmissionPolicy", "slices")["spec"]["matchConditions"][0]["expression"]
    assert "'system:serviceaccount:elsewhere:gpus-kubeletplugin'" in condition


def test_the_sandbox_values_are_for_clusters_without_gpus() -> None:
    values = yaml.safe_load((CHART / "values-sandbox.yaml").read_text(encoding="utf-8"))
    pod = find(render(values), "DaemonSet")["spec"]["template"]["spec"]
    assert "affinity" not in pod
    assert not any(one["securityContext"].get("privileged") for one in pod["containers"])


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (
            {},
            ["resource.k8s.io/v1 ", "driver in / of GPU nodes", "READY 2/2", "kubectl get resourceslices", "helm test"],
        ),
        ({"simulatedNode": "a30x4"}, ["simulated GPUs (a30x4)"]),
        ({"gpuResourcesEnabledOverride": True}, ["gpuResourcesEnabledOverride is not needed"]),
    ],
)
def test_notes_tell_what_to_type_next(values: JSON, texts: list[str]) -> None:
    notes = render_files(values)["NOTES.txt"]
    for text in texts:
        assert text in notes
    assert "DRAPartitionableDevices" not in notes
    assert "DRAPartitionableDevices" in render_files(values, 35)["NOTES.txt"]
