# SPDX-License-Identifier: Apache-2.0
"""Clusters of other releases: fields that are not evaluated, the release and its feature gates, DeviceTaintRules."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import NODES
from dra_driver.kube.resource.codec import TAINT_RULE_VERSIONS
from tests.support.apiserver import SLICES, embedded
from tests.support.paging import Collection, PagedServer, paged

from .conftest import DryRun, Write, gpu, install_classes, slice_of
from .test_cluster import CLASSES, TEMPLATES, referring
from .test_command import claim
from .test_whole_pod import pod

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
GATES = {
    "DRADeviceCompatibilityGroups": True,
    "DRADerivedAttributes": True,
    "DRANodeAllocatableResources": True,
    "DRAOptionalNodeOperations": True,
    "DRAPartitionableDevicesType": True,
}
OTHER = "nic.example.com"


@contextmanager
def cluster(folder: Path, *slices: JSON, **options: Any) -> Iterator[tuple[Path, ApiClient]]:
    """A cluster with the driver's classes, a node `a` and slices: its kubeconfig and an administrator's client."""
    with embedded(folder, **{"minor": 37, "gates": GATES, **options}) as (_, path, client):
        install_classes(client)
        client.create(NODES, {"metadata": {"name": "a"}})
        for value in slices:
            client.create(SLICES, value)
        yield path, client


def counted(node: str, **more: Any) -> list[JSON]:
    """Two slices of a pool: a counter set, and a GPU that consumes it."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    consumed = {"counterSet": "c", "counters": {"x": {"value": "1"}}, **more}
    devices, counters = slice_of(node, {**gpu("gpu-0"), "consumesCounters": [consumed]}), slice_of(node)
    devices["spec"]["pool"] = counters["spec"]["pool"] = pool
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "c", "counters": {"x": {"value": "1"}}}]
    counters["metadata"]["name"] = f"{node}-counters"
    return [devices, counters]


def of_other_driver(value: JSON) -> JSON:
    value["spec"]["driver"] = OTHER
    value["metadata"]["name"] = "other"
    return value


def with_spec(value: JSON, **fields: Any) -> JSON:
    value["spec"] |= fields
    return value


def mapped() -> JSON:
    """A slice with a GPU that also takes cpu of the node."""
    return slice_of("a", {**gpu("gpu-0"), "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}})


def skipping() -> JSON:
    """A slice for whose device kubelet makes no calls."""
    return with_spec(slice_of("a", gpu("gpu-0")), skipNodeOperations=["*"])


def test_a_field_that_is_not_evaluated_makes_the_verdict_uncertain(
    dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    wanted = write("claim.yaml", claim())
    with cluster(tmp_path, skipping()) as (path, _):
        code, out, err = dryrun(wanted, "--kubeconfig", path, "-o", "json")
    assert code == 3, out + err
    document = json.loads(out)
    assert document["fits"] is True
    (note,) = document["notes"]
    assert note["object"] == "ResourceClaim wanted"
    assert "the field spec.skipNodeOperations of ResourceSlice a-slice is not evaluated" in note["text"]


def test_a_field_without_effect_leaves_the_verdict_certain(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    typed = with_spec(slice_of("a", gpu("gpu-0")), partitionTypeAttribute="gpu.nvidia.com/profile")
    with cluster(tmp_path, typed) as (path, _):
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", path)
    assert code == 0, out + err


def test_a_field_of_another_driver_leaves_the_verdict_certain(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    other = of_other_driver(with_spec(slice_of("a", gpu("nic-0")), skipNodeOperations=["*"]))
    with cluster(tmp_path, slice_of("a", gpu("gpu-0")), other) as (path, _):
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", path)
    assert code == 0, out + err


@pytest.mark.parametrize("flags", [[], ["--feature-gates", "DRAOptionalNodeOperations=false"]])
def test_a_gate_that_is_off_leaves_the_verdict_certain(
    flags: list[str], dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    with cluster(tmp_path, skipping()) as (path, _):
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", path, *flags)
    assert code == (0 if flags else 3), out + err


@pytest.mark.parametrize(("cpu", "code"), [("2", 0), ("1", 1)])
def test_cpu_that_a_device_takes_of_its_node_is_evaluated_if_the_gate_is_known(
    cpu: str, code: int, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    allocatable = {"cpu": cpu, "memory": "1Gi", "pods": "10"}
    wanted = referring("p", resourceClaimTemplateName="one")
    wanted["spec"]["containers"][0] |= {"image": "i", "resources": {"requests": {"cpu": "1"}}}
    with cluster(tmp_path, mapped()) as (path, client):
        client.patch(NODES, "a", {"status": {"allocatable": allocatable}}, subresource="status")
        exactly = {"deviceClassName": "gpu.nvidia.com"}
        devices = {"requests": [{"name": "gpu", "exactly": exactly}]}
        client.create(TEMPLATES, {"metadata": {"name": "one"}, "spec": {"spec": {"devices": devices}}}, "default")
        found, out, err = dryrun(write("pod.json", wanted), "--kubeconfig", path)
    assert found == code, out + err
    assert ("Insufficient cpu" in out) is bool(code)


@pytest.mark.parametrize(("expression", "code"), [("'a'", 0), ("{'a': 1}", 1)])
def test_derived_attributes_of_a_stored_template_are_evaluated(
    expression: str, code: int, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    derived = {"name": "example.com/row", "expression": expression}
    exactly = {"deviceClassName": "gpu.nvidia.com", "derivedAttributes": [derived]}
    spec = {"requests": [{"name": "gpu", "exactly": exactly}], "constraints": [{"matchAttribute": "example.com/row"}]}
    with cluster(tmp_path, slice_of("a", gpu("gpu-0"))) as (path, client):
        client.create(TEMPLATES, {"metadata": {"name": "shape"}, "spec": {"spec": {"devices": spec}}}, "default")
        wanted = write("pod.json", referring("p", resourceClaimTemplateName="shape"))
        found, out, err = dryrun(wanted, "--kubeconfig", path, "--devices-only")
    assert found == code, out + err


@pytest.mark.parametrize(("gates", "code"), [("", 3), (",DRADeviceCompatibilityGroups=true", 0)])
def test_compatibility_groups_are_evaluated_if_their_gate_is_known(
    gates: str, code: int, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    groups = slice_of("a", {**gpu("gpu-0"), "consumesCounters": []})
    groups["spec"]["devices"][0]["consumesCounters"] = [
        {"counterSet": "c", "counters": {"x": {"value": "1"}}, "compatibilityGroups": ["g"]}
    ]
    groups["spec"]["sharedCounters"] = [{"name": "c", "counters": {"x": {"value": "1"}}}]
    objects = {"nodes": {"metadata": {"name": "a"}}, "deviceclasses": DEVICE_CLASS, "resourceslices": groups}
    with served({"/version": {"major": "1", "minor": "34"}}, **objects) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        flags = ["--kubeconfig", config, "--feature-gates", f"DRAPartitionableDevices=true{gates}"]
        found, out, err = dryrun(write("claim.yaml", claim()), *flags)
    assert (found, "compatibilityGroups of ResourceSlice a-slice" in out) == (code, not gates), out + err


def served(documents: dict[str, JSON | str] | None = None, **collections: JSON) -> AbstractContextManager[PagedServer]:
    """An API server whose collections have one object each, as no release of today stores it."""
    root = "/apis/resource.k8s.io/v1"

    def always(value: JSON) -> Collection:
        return Collection(1, lambda _: value)

    paths = {plural: f"{root}/{plural}" for plural in collections} | {"nodes": "/api/v1/nodes"}
    return paged({paths[plural]: always(value) for plural, value in collections.items()}, documents)


DEVICE_CLASS: JSON = {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": []}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"resourceslices": with_spec(slice_of("a", {**gpu("gpu-0"), "zone": "b"}))}, "spec.devices[].zone of"),
        ({"deviceclasses": {**DEVICE_CLASS, "spec": {"selectors": [{"rego": "x"}]}}}, "spec.selectors[].rego of"),
        ({"deviceclasses": {**DEVICE_CLASS, "spec": {"suitableFor": "x"}}}, "spec.suitableFor of DeviceClass"),
    ],
)
def test_an_object_of_a_server_is_never_refused_for_an_unknown_field(
    changed: dict[str, JSON], said: str, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    objects: dict[str, JSON] = {
        "nodes": {"metadata": {"name": "a", "zone": "b"}},
        "deviceclasses": DEVICE_CLASS,
        "resourceslices": slice_of("a", gpu("gpu-0")),
        **changed,
    }
    with served(**objects) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", config)
        assert code == 3, out + err
        assert f"the field {said}" in out, out + err


def test_unknown_fields_of_a_server_stop_no_subcommand(dryrun: DryRun, tmp_path: Path) -> None:
    objects: dict[str, JSON] = {
        "nodes": {"metadata": {"name": "a", "zone": "b"}},
        "deviceclasses": {**DEVICE_CLASS, "spec": {"selectors": [{"rego": "x"}], "suitableFor": "x"}},
        "resourceslices": with_spec(slice_of("a", {**gpu("gpu-0"), "zone": "b"})),
    }
    with served(**objects) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        for command in (["capacity"], ["gpus"], ["cel", "true"], ["snapshot"]):
            assert dryrun(*command, "--kubeconfig", config)[0] == 0


def test_an_unknown_field_in_a_file_of_the_user_is_refused(dryrun: DryRun, write: Write) -> None:
    newer = with_spec(slice_of("a", gpu("gpu-0")), zone="b")
    code, _, err = dryrun(write("claim.yaml", claim()), "--slices", write("slices.json", newer))
    assert code == 2
    assert "spec.zone: unknown field" in err


def test_the_answers_from_a_snapshot_are_as_uncertain_as_those_from_the_cluster(
    dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    wanted = write("claim.yaml", claim())
    with cluster(tmp_path, with_spec(slice_of("a", gpu("gpu-0")), skipNodeOperations=["*"])) as (path, _):
        for flags in ([], ["--anonymise"]):
            saved = write("snapshot.yaml", dryrun("snapshot", "--kubeconfig", path, *flags)[1])
            code, out, err = dryrun(wanted, "--slices", saved)
            assert code == 3, out + err
            assert "the field spec.skipNodeOperations" in out, out + err


def kubernetes_version(dryrun: DryRun, *arguments: object) -> str:
    """The release whose rules a document names."""
    document = json.loads(dryrun(*arguments, "-o", "json")[1])
    version: str = document["inputs"]["kubernetesVersion"]
    return version


@pytest.mark.parametrize(
    ("minor", "flags", "release"),
    [
        (34, [], "1.34"),
        (37, [], "1.37"),
        (37, ["--kubernetes-version", "1.35"], "1.35"),
        (37, ["--kubernetes-version", "1.36.5"], "1.36.4"),
    ],
)
def test_the_release_is_that_of_the_cluster_unless_a_flag_names_one(
    minor: int, flags: list[str], release: str, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    with cluster(tmp_path, slice_of("a", gpu("gpu-0")), minor=minor, gates={}) as (path, _):
        assert kubernetes_version(dryrun, write("claim.yaml", claim()), "--kubeconfig", path, *flags) == release


def test_without_a_cluster_the_release_is_the_newest_for_all_commands(dryrun: DryRun, write: Write) -> None:
    assert kubernetes_version(dryrun, write("claim.yaml", claim()), "--built-in") == "1.37"
    newer = "device.attributes['gpu.nvidia.com'].productName.exists(letter, true)"
    for release, compiles in ((None, True), ("1.36", False), ("1.36.4", False), ("1.37.2", True)):
        flags = ["--kubernetes-version", release] if release else []
        out = dryrun("cel", "--built-in", newer, *flags)[1]
        assert ("does not compile" not in out) is compiles, out
        found = dryrun("lint", "--built-in", write("newer.yaml", claim(newer)), *flags)[1]
        assert ("fails on" in found) is compiles, found  # what does not compile is not evaluated


def test_a_release_that_is_not_known_is_named(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    version = {"major": "1", "minor": "39+"}
    with served({"/version": version}, nodes={"metadata": {"name": "a"}}) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", config)
    assert code == 2, err
    assert "the cluster has Kubernetes 1.39, whose rules are not known: those of 1.38 count" in out


EXTENDED: JSON = {"metadata": {"name": "by-name"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--feature-gates", "DRAExtendedResource=false"], 1)])
def test_the_feature_gates_are_those_of_the_metrics_unless_a_flag_sets_them(
    flags: list[str], code: int, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    wanted = pod("p")
    wanted["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    with cluster(tmp_path, slice_of("a", gpu("gpu-0")), minor=35, gates={"DRAExtendedResource": True}) as (
        path,
        client,
    ):
        client.create(CLASSES, EXTENDED)
        found, out, err = dryrun(write("p.json", wanted), "--kubeconfig", path, "--devices-only", *flags)
    assert found == code, out + err


@pytest.mark.parametrize("metrics", ["", "kubernetes_feature_enabled", "x" * 100, 'kubernetes_feature_enabled{name="'])
def test_metrics_without_gates_leave_the_defaults_of_the_release(
    metrics: str, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    objects = {"nodes": {"metadata": {"name": "a"}}, "deviceclasses": DEVICE_CLASS}
    with served({"/metrics": metrics}, **objects, resourceslices=slice_of("a", gpu("gpu-0"))) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        assert dryrun(write("claim.yaml", claim()), "--kubeconfig", config)[0] == 0


def taint_rule(version: str = "resource.k8s.io/v1", **spec: Any) -> JSON:
    taint = {"key": "example.com/maintenance", "effect": "NoSchedule"}
    return {
        "apiVersion": version,
        "kind": "DeviceTaintRule",
        "metadata": {"name": "rule"},
        "spec": {"taint": taint, **spec},
    }


SELECTED: JSON = {"deviceSelector": {"pool": "a"}}


@pytest.mark.parametrize(
    ("version", "minor"), [("v1", 37), ("v1beta2", 37), ("v1beta2", 36), ("v1alpha3", 36), ("v1alpha3", 35)]
)
def test_taint_rules_of_a_cluster_count_in_every_served_version(
    version: str, minor: int, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    options = {"minor": minor, "resource_versions": ("v1", version)}
    gates = {"DRADeviceTaints": True, "DRADeviceTaintRules": True}
    with cluster(tmp_path, slice_of("a", gpu("gpu-0")), gates=gates, **options) as (path, client):
        kind = Kind(f"resource.k8s.io/{version}", "devicetaintrules")
        client.create(kind, taint_rule(kind.api_version, **SELECTED))
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", path)
        saved = write("snapshot.json", dryrun("snapshot", "--kubeconfig", path, "-o", "json")[1])
        assert (
            dryrun(write("claim.yaml", claim()), "--slices", saved, "--feature-gates", "DRADeviceTaints=true")[0] == 1
        )
    assert code == 1, out + err
    assert "example.com/maintenance" in out


@pytest.mark.parametrize("version", TAINT_RULE_VERSIONS)
@pytest.mark.parametrize(
    ("spec", "flags", "code"),
    [
        (SELECTED, [], 1),
        ({}, [], 1),
        ({"deviceSelector": {"pool": "b"}}, [], 0),
        (SELECTED, ["--feature-gates", "DRADeviceTaintRules=false"], 0),
        (SELECTED, ["--feature-gates", "DRADeviceTaints=false"], 0),
    ],
)
def test_taint_rules_in_files_count(
    spec: JSON, flags: list[str], code: int, version: str, dryrun: DryRun, write: Write
) -> None:
    slices = write(
        "slices.json",
        {"apiVersion": "v1", "kind": "List", "items": [slice_of("a", gpu("gpu-0")), taint_rule(version, **spec)]},
    )
    found, out, err = dryrun(write("claim.yaml", claim()), "--slices", slices, *flags)
    assert found == code, out + err


def test_a_taint_rule_among_the_files_to_evaluate_counts(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("a", gpu("gpu-0")))
    code, out, err = dryrun(
        write("claim.yaml", claim()), write("rule.json", taint_rule(**SELECTED)), "--slices", slices
    )
    assert code == 1, out + err
    assert "example.com/maintenance" in out, out + err


def test_a_taint_rule_that_selects_by_other_fields_makes_the_verdict_uncertain(
    dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    rule = taint_rule(deviceSelector={"deviceClassName": "gpu.nvidia.com"})
    objects = {"nodes": {"metadata": {"name": "a"}}, "deviceclasses": DEVICE_CLASS}
    discovery: JSON = {"resources": [{"name": "devicetaintrules"}]}
    objects |= {"resourceslices": slice_of("a", gpu("gpu-0")), "devicetaintrules": rule}
    with served({"/apis/resource.k8s.io/v1": discovery}, **objects) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", config)
    assert code == 3, out + err
    assert "the rule may taint the device" in out, out + err


@pytest.mark.parametrize(
    ("plural", "bad", "said"),
    [
        ("nodes", {"metadata": {"name": "bad"}, "spec": {"taints": 3}}, "Node bad: spec.taints: must be a list"),
        ("resourceslices", slice_of("bad", {"name": 3}), "ResourceSlice bad-slice: spec.devices[0].name: must be"),
        ("deviceclasses", {"metadata": {"name": "bad"}, "spec": {"selectors": 3}}, "DeviceClass bad: spec.selectors"),
        ("resourceclaims", {"metadata": {"name": "bad"}, "spec": {"devices": 3}}, "ResourceClaim bad: spec.devices"),
        ("pods", {"metadata": {"name": "bad"}, "spec": {"tolerations": 3}}, "Pod bad: spec.tolerations: must be"),
        ("resourcequotas", {"metadata": {"name": "bad"}, "spec": {"hard": 3}}, "ResourceQuota bad: spec.hard: must be"),
    ],
    ids=["node", "slice", "class", "claim", "pod", "quota"],
)
def test_stored_object_that_cannot_be_read_hides_no_other(
    plural: str, bad: JSON, said: str, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    good: dict[str, JSON] = {
        "nodes": {"metadata": {"name": "a"}},
        "deviceclasses": DEVICE_CLASS,
        "resourceslices": slice_of("a", gpu("gpu-0")),
    }
    root = "/api/v1" if plural in ("nodes", "pods", "resourcequotas") else "/apis/resource.k8s.io/v1"
    paths = {name: "/api/v1/nodes" if name == "nodes" else f"/apis/resource.k8s.io/v1/{name}" for name in good}
    collections = {paths[name]: Collection(1, lambda _, value=value: value) for name, value in good.items()}  # type: ignore[misc]
    items = [value for name, value in good.items() if name == plural] + [bad]
    collections[f"{root}/{plural}"] = Collection(len(items), items.__getitem__)
    watched = [["--until-fits"]] if plural == "nodes" else []
    with paged(collections) as server:
        config = server.write_kubeconfig(tmp_path / "config")
        for flags in ([], *watched):
            code, out, err = dryrun(write("claim.yaml", claim()), "--kubeconfig", config, *flags)
            assert "fits  ResourceClaim wanted" in out, out + err
            assert said in out
            assert code == 3


def pending(name: str, namespace: str, **spec: Any) -> JSON:
    """A pending pod of a namespace that requests nothing."""
    made = pod(name, "1")
    return {**made, "metadata": {"name": name, "namespace": namespace}, "spec": {**made["spec"], **spec}}


def all_pending(pods: list[JSON], dryrun: DryRun, folder: Path) -> tuple[int, JSON]:
    """What is said about all pending pods of a cluster."""
    root = "/apis/resource.k8s.io/v1"
    collections = {
        "/api/v1/nodes": Collection(1, lambda _: {"metadata": {"name": "a"}}),
        "/api/v1/pods": Collection(len(pods), pods.__getitem__),
        f"{root}/deviceclasses": Collection(1, lambda _: DEVICE_CLASS),
        f"{root}/resourceslices": Collection(1, lambda _: slice_of("a", gpu("gpu-0"))),
    }
    missing = {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"}
    template = f"{root}/namespaces/one/resourceclaimtemplates/none"
    with paged(collections, {template: missing}) as server:
        config = server.write_kubeconfig(folder / "config")
        code, out, err = dryrun("--all-pending", "-A", "--kubeconfig", config, "-o", "json")
    assert out, err
    return code, json.loads(out)


def test_pod_whose_template_is_missing_hides_no_other_pending_pod(dryrun: DryRun, tmp_path: Path) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "none"}]
    pods = [pending("broken", "one", resourceClaims=claims), pending("whole", "one"), pending("whole", "two")]
    code, document = all_pending(pods, dryrun, tmp_path)
    assert code == 1
    found = {demand["name"]: demand["fits"] for demand in document["demands"]}
    assert found == {"Pod one/broken": False, "Pod one/whole": True, "Pod two/whole": True}
    assert "there is no ResourceClaimTemplate one/none" in json.dumps(document["demands"][0])


@pytest.mark.parametrize("field", ["newerField", "schedulingGroup"])
def test_unknown_field_of_a_stored_pod_makes_its_verdict_uncertain(field: str, dryrun: DryRun, tmp_path: Path) -> None:
    pods = [pending("plain", "one"), pending("grouped", "one", **{field: {"podGroupName": "g"}})]
    code, document = all_pending(pods, dryrun, tmp_path)
    assert code == 3
    (note,) = document["notes"]
    assert note["object"] == "Pod one/grouped"
    assert note["text"].startswith(f"the field spec.{field} of the pod is not evaluated")
