# SPDX-License-Identifier: Apache-2.0
"""Every values file on every release: valid objects, no complaints by Helm, and the renderings that were reviewed."""

import json
import re

import helm_python
import pytest
import yaml

from tests.support.schemas import validate

from .custom_kinds import complaints, is_custom
from .golden import FOLDER, golden
from .rendering import (
    CHART,
    JSON,
    MINORS,
    NEWEST,
    RENDERINGS,
    VALUES,
    find,
    merged,
    refusal,
    render,
    render_files,
)

SERVICES: JSON = {"podMonitor": {"create": "never"}, "serviceMonitor": {"create": "always"}}


@pytest.mark.parametrize("minor", MINORS)
def test_every_object_is_valid_in_every_release(minor: int) -> None:
    """Most objects are the same for many values, and are looked at once."""
    names = [name for name, release in RENDERINGS if release == minor]
    assert names
    objects = {json.dumps(one): one for name in names for one in render(VALUES[name], minor)}
    for one in objects.values():
        if is_custom(one):
            assert not complaints(one)
        else:
            validate(one, f"1.{minor}")


@pytest.mark.parametrize(
    ("name", "minor"), [*((name, NEWEST) for name in VALUES), ("defaults", MINORS[0]), ("everything", MINORS[0])]
)
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


@pytest.mark.parametrize("release", ["a" * 53, "gpu." + "b" * 49, "1.2.3", "dra-driver-gpu"])
def test_any_name_of_a_release_makes_names_that_fit(release: str) -> None:
    objects = render(merged(VALUES["everything"], SERVICES), release=release)
    for one in objects:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", one["metadata"]["name"])
        for value in one["metadata"]["labels"].values():
            assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", value)
            assert len(value) <= 63
        if one["kind"] == "Service":
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", one["metadata"]["name"])


@pytest.mark.parametrize("key", ["nameOverride", "fullnameOverride", "namespaceOverride"])
def test_names_that_the_api_server_would_refuse_are_refused(key: str) -> None:
    for name in ("Upper", "under_score", "-begin", "end-", "a" * 64):
        assert key in refusal({key: name})


@pytest.mark.parametrize(
    ("version", "surge"),
    [
        ("v1.32.9-eks-3025e55", 0),
        ("v1.32.0-gke.1000", 0),
        ("v1.33.0-rc.1", "10%"),
        ("v1.34.1+k3s1", "10%"),
        ("v1.36.2-aks.1", "10%"),
        ("v1.37.0-alpha.3.12+0123456789abcd", "10%"),
    ],
)
def test_releases_are_known_with_the_names_that_distributions_give_them(version: str, surge: object) -> None:
    strategy = find(render({}, version=version), "DaemonSet")["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"]["maxSurge"] == surge


def test_two_releases_do_not_share_objects_of_the_cluster() -> None:
    def of_the_cluster(namespace: str) -> set[tuple[str, str]]:
        domains = {"computeDomains": {"installCRDs": False}}
        values = {"deviceClasses": {"create": False}, "resources": domains, "webhook": {"enabled": True}}
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
            [
                "resource.k8s.io/v1 ",
                "driver in / of GPU nodes",
                "READY 2/2",
                "kubectl label node NODE nvidia.com/gpu.present=true",
                "kubectl label namespace dra-driver-gpu pod-security.kubernetes.io/enforce=privileged",
                "kubectl get resourceslices",
                "helm test release --namespace dra-driver-gpu\n",
                "-- dra-kubeletplugin check",
            ],
        ),
        ({"simulatedNode": "a30x4"}, ["simulated GPUs (a30x4)", "pod-security.kubernetes.io/enforce=privileged"]),
        (
            {"nvidiaDriverRoot": "/run/nvidia/driver"},
            ["driver in /run/nvidia/driver", "kubeletPlugin.check.enabled=true"],
        ),
        ({"gpuResourcesEnabledOverride": True}, ["gpuResourcesEnabledOverride is not needed"]),
        (
            {"webhook": {"enabled": True}},
            ["deployment/release-dra-driver-gpu-webhook", "are refused", "certificate release-dra-driver-gpu-webhook"],
        ),
        (VALUES["webhook-secret"], ["are not checked", "get secret webhook-tls"]),
        (
            VALUES["cleanup"],
            ["no longer runs", "rollout status daemonset/release-dra-driver-gpu-cleanup", "helm uninstall release"],
        ),
        ({"cleanup": {"enabled": True}}, ["go back (cleanup.enabled=false)"]),
    ],
)
def test_notes_tell_what_to_type_next(values: JSON, texts: list[str]) -> None:
    notes = render_files(values)["NOTES.txt"]
    for text in texts:
        assert text in notes
    assert "DRAPartitionableDevices" not in notes
    told = "DRAPartitionableDevices" in render_files(values, 35)["NOTES.txt"]
    assert told == (not values.get("cleanup"))


@pytest.mark.parametrize("values", [{}, VALUES["everything"], VALUES["webhook-secret"], VALUES["cleanup"]])
def test_notes_name_only_rendered_objects(values: JSON) -> None:
    notes = render_files(values)["NOTES.txt"]
    there = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in render(values)}
    there |= {f"{one['kind'].lower()} {one['metadata']['name']}" for one in render(values)}
    for name in re.findall(r"(?:daemonset|deployment)/\S+|(?:certificate|pod) release\S+", notes):
        assert name in there
