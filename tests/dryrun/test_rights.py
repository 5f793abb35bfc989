# SPDX-License-Identifier: Apache-2.0
"""Rights in the cluster: all that are missing are named at once, and the chart's ClusterRole has all of them."""

import copy
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NAMESPACES, NODES, PODS
from dra_driver.sandbox.apiserver.users import AUTHENTICATED
from tests.charts.rendering import find, render
from tests.support.apiserver import CLUSTER_ROLES, SLICES, embedded, kubeconfig_of_user
from tests.support.faultyserver import FaultyServer

from .conftest import DryRun, Write, gpu, install_classes, slice_of
from .migrate.test_cluster import install_kind, store
from .migrate.test_cluster import objects as migrating
from .test_cluster import TEMPLATES, referring
from .test_command import claim
from .test_whole_pod import node

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
PAGE = Path(__file__).parents[2] / "docs/reference/dry-run-cluster.md"
ROLE: JSON = find(render({"dryRun": {"clusterRole": True}}), "ClusterRole", "dry-run")
OF_MIGRATE = ("apps", "batch", "kubevirt.io", "nvidia.com", "kueue.x-k8s.io")
"""API groups that only `migrate` reads."""
EVERY_RIGHT = [
    (number, verb, resource)
    for number, rule in enumerate(ROLE["rules"])
    for verb in rule["verbs"]
    for resource in rule.get("resources", ())
]
OF_QUEUES = ("cohorts", "localqueues", "resourceflavors")
"""What only `fit` of workloads in a queue reads (tests/dryrun/test_kueue.py)."""
RIGHTS_OF_MIGRATE = [
    (number, verb, resource)
    for number, verb, resource in EVERY_RIGHT
    if (resource not in OF_QUEUES and (ROLE["rules"][number]["apiGroups"][0] in OF_MIGRATE and verb == "list"))
    or resource in ("podtemplates", "replicationcontrollers", "configmaps")
]
RIGHTS = [
    right
    for right in EVERY_RIGHT
    if right not in RIGHTS_OF_MIGRATE
    and right[2] not in OF_QUEUES
    and ROLE["rules"][right[0]]["apiGroups"] not in (["apps"], ["batch"], ["scheduling.k8s.io"])
]
"""Those of `fit`, but for templates of running pods (see test_rollout.py), for workloads that are named, and for groups
of pods.
"""
SPEC: JSON = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}


class Cluster:
    """A cluster with a GPU, a template, a pending pod, and a user who has a role."""

    def __init__(self, client: ApiClient, config: Path) -> None:
        self._client = client
        self.config = config

    def grant(self, rules: list[JSON]) -> None:
        """Give the user these rules, and no other rights."""
        self._client.update(CLUSTER_ROLES, {**self._client.get(CLUSTER_ROLES, "some"), "rules": rules})

    def store(self, *values: JSON) -> None:
        """Create these objects, and their namespaces."""
        for name in {value["metadata"].get("namespace", "default") for value in values} - {"default"}:
            self._client.create(NAMESPACES, {"metadata": {"name": name}})
        for value in values:
            store(self._client, value)

    def serve(self, version: str, kind: str) -> None:
        """Let the server have a kind of another project, whose objects are in no namespace."""
        install_kind(self._client, version, kind, namespaced=False)

    def has(self, group: str, resource: str) -> bool:
        """Whether the server has these objects."""
        version = self._client.get_path(f"/apis/{group}/v1" if group else "/api/v1")
        return any(one["name"] == resource for one in version["resources"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("rights")
    # The release has the gate of DeviceTaintRules; the other gate shows whether the metrics are read.
    with embedded(folder, rbac=True, minor=37, gates={"DRAConsumableCapacity": False}) as (server, _, client):
        yield filled(server, client, folder)


def filled(server: FaultyServer, client: ApiClient, folder: Path) -> Cluster:
    """The cluster of a server."""
    install_classes(client)
    made = node("a")
    client.create(NODES, made)
    client.update(NODES, {**client.get(NODES, "a"), "status": made["status"]}, subresource="status")
    client.create(SLICES, slice_of("a", gpu("gpu-0")))
    client.create(TEMPLATES, {"metadata": {"name": "shape"}, "spec": {"spec": SPEC}}, "default")
    client.create(PODS, referring("waiting", resourceClaimTemplateName="shape"), "default")
    return Cluster(client, kubeconfig_of_user(server, client, folder, [], (AUTHENTICATED,)))


@pytest.fixture
def wanted(write: Write) -> Path:
    return write("pod.json", referring("p", resourceClaimTemplateName="shape"))


def without(number: int, verb: str, resources: Collection[str]) -> list[JSON]:
    """The rules of the chart's role, one of them without the right to do something with these resources."""
    rules: list[JSON] = copy.deepcopy(ROLE["rules"])
    rule = rules.pop(number)
    others = [one for one in rule["verbs"] if one != verb]
    kept = [one for one in rule["resources"] if one not in resources]
    rules += [{**rule, "verbs": others}] if others else []
    return rules + ([{**rule, "resources": kept, "verbs": [verb]}] if kept else [])


def grouped(rights: Iterable[tuple[int, str, str]], alone: Collection[str]) -> list[tuple[int, str, list[str]]]:
    """The rights of each verb of each rule together, but for resources that are `alone`."""
    groups = defaultdict[tuple[int, str, str], list[str]](list)
    for number, verb, resource in rights:
        groups[number, verb, resource if resource in alone else ""].append(resource)
    return [(number, verb, resources) for (number, verb, _), resources in groups.items()]


def without_nodes() -> list[JSON]:
    """The rules of the chart's role without the right to list nodes."""
    return [rule for rule in copy.deepcopy(ROLE["rules"]) if rule.get("resources") != ["nodes"]]


@pytest.mark.parametrize(
    "command",
    [["fit"], ["fit", "--until-fits"], ["lint"], ["capacity"], ["gpus"], ["cel", "true"], ["snapshot"]],
    ids=" ".join,
)
def test_with_the_role_of_the_chart_nothing_is_unknown(
    command: list[str], cluster: Cluster, dryrun: DryRun, wanted: Path
) -> None:
    cluster.grant(ROLE["rules"])
    files = [wanted] if command[0] in ("fit", "lint") else []
    code, out, err = dryrun(*command, *files, "--kubeconfig", cluster.config)
    assert code == 0, out + err
    assert "allowed" not in out + err
    assert "not known" not in out + err


def test_with_the_role_of_the_chart_a_pod_of_the_cluster_can_be_explained(cluster: Cluster, dryrun: DryRun) -> None:
    cluster.grant(ROLE["rules"])
    code, out, err = dryrun("pod/waiting", "--kubeconfig", cluster.config)
    assert code == 0, out + err
    assert "allowed" not in out, out + err


@pytest.mark.parametrize(("number", "verb", "resources"), grouped(RIGHTS, ("nodes", "pods")))
def test_without_any_of_the_rights_something_is_unknown(
    number: int, verb: str, resources: list[str], cluster: Cluster, dryrun: DryRun, wanted: Path
) -> None:
    """All objects that a rule has are named, except those that this API server does not have for watches."""
    if verb == "watch":
        resources = [one for one in resources if cluster.has(ROLE["rules"][number]["apiGroups"][0], one)]
    if not resources:
        pytest.skip("this API server has none of them, so they are not watched")
    cluster.grant(without(number, verb, resources))
    flags = ["--until-fits"] if verb == "watch" else []
    questions: list[str | Path] = [wanted]
    if verb == "get" and resources == ["pods"]:
        questions = ["pod/waiting"]
    elif verb == "get":
        claims = wanted.with_name("direct.json")
        claims.write_text(json.dumps(referring("p", resourceClaimName="mine")), encoding="utf-8")
        questions.append(claims)
    printed = ""
    for asked in questions:
        code, out, err = dryrun(asked, "--kubeconfig", cluster.config, *flags)
        assert code in (2, 3), out + err
        assert "allowed" in out + err
        printed += out + err
    assert [one for one in resources if one not in printed] == []


@pytest.fixture(scope="module")
def with_plugin(cluster: Cluster) -> Cluster:
    """The cluster with NVIDIA's device plugin, a workload that uses it, and the kinds of the GPU Operator and Kueue."""
    cluster.serve("nvidia.com/v1", "ClusterPolicy")
    cluster.serve("nvidia.com/v1alpha1", "GPUCluster")
    cluster.serve("kueue.x-k8s.io/v1beta2", "ClusterQueue")
    cluster.store(*migrating())
    return cluster


def test_with_the_role_of_the_chart_migrate_reads_everything(with_plugin: Cluster, dryrun: DryRun) -> None:
    with_plugin.grant(ROLE["rules"])
    code, out, err = dryrun("migrate", "--kubeconfig", with_plugin.config)
    assert code == 0, out + err
    assert "allowed" not in out + err
    assert "Deployment" in out


@pytest.mark.parametrize(("number", "verb", "resources"), grouped(RIGHTS_OF_MIGRATE, ("configmaps", "daemonsets")))
def test_without_any_of_its_rights_migrate_names_what_it_does_not_know(
    number: int, verb: str, resources: list[str], with_plugin: Cluster, dryrun: DryRun
) -> None:
    with_plugin.grant(without(number, verb, resources))
    code, out, err = dryrun("migrate", "--kubeconfig", with_plugin.config)
    # Without its configuration, nothing can be said about the plugin; without the plugin, its resources are unknown.
    assert code == {"configmaps": 2, "daemonsets": 1}.get(resources[0], 3), out + err
    assert "not allowed" in out + err
    assert [one for one in resources if one not in out + err] == []


def test_migrate_needs_the_right_to_list_nodes(with_plugin: Cluster, dryrun: DryRun) -> None:
    with_plugin.grant(without_nodes())
    code, out, err = dryrun("migrate", "--kubeconfig", with_plugin.config)
    assert (code, out) == (2, "")
    assert "not allowed to list nodes (kubeconfig" in err


def test_without_the_right_to_read_metrics_the_gates_are_those_of_the_release(
    cluster: Cluster, dryrun: DryRun, write: Write
) -> None:
    """The cluster has switched consumable capacity off, which is on by default."""
    shared = claim().replace("count: 1", "count: 1\n        capacity: {requests: {memory: 10Gi}}")
    path = write("shared.yaml", shared)
    document = []
    for rules in (ROLE["rules"], [rule for rule in ROLE["rules"] if "resources" in rule]):
        cluster.grant(rules)
        document.append(dryrun(path, "--kubeconfig", cluster.config, "-o", "json"))
    assert [found[0] for found in document] == [1, 0], document


def test_the_role_of_the_page_is_that_of_the_chart() -> None:
    (text,) = re.findall(r"```yaml\n# dry-run-role.yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert yaml.load(text, yaml.CSafeLoader)["rules"] == ROLE["rules"]


@pytest.mark.parametrize("flags", [[], ["--until-fits"]])
def test_all_missing_rights_are_named_in_one_run(
    flags: list[str], cluster: Cluster, dryrun: DryRun, wanted: Path
) -> None:
    cluster.grant([])
    code, out, err = dryrun(wanted, "--kubeconfig", cluster.config, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    for number, verb, resource in RIGHTS:
        if (verb != "watch" or flags) and (verb, resource) != ("get", "pods"):
            group = ROLE["rules"][number]["apiGroups"][0]
            assert f"{verb} {resource}{'.' * bool(group)}{group}" in err
    assert "dryRun.clusterRole=true" in err
    assert "someone" in err


def test_missing_right_to_read_a_group_of_pods_is_named(cluster: Cluster, dryrun: DryRun, write: Write) -> None:
    cluster.grant([rule for rule in ROLE["rules"] if rule.get("resources") != ["podgroups"]])
    member = referring("p", resourceClaimTemplateName="shape")
    member["spec"]["schedulingGroup"] = {"podGroupName": "workers"}
    code, out, err = dryrun("gangs", write("member.json", member), "--kubeconfig", cluster.config)
    assert code == 3, out + err
    assert "it is not known whether kube-scheduler schedules it" in out
    assert "to get podgroups.scheduling.k8s.io in the cluster is not allowed" in out


@pytest.fixture(scope="module")
def with_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that serves Workloads and PodGroups, and has none."""
    folder = tmp_path_factory.mktemp("groups")
    with embedded(folder, rbac=True, minor=37, gates={"GenericWorkload": True}) as (server, _, client):
        yield filled(server, client, folder)


@pytest.mark.parametrize("resource", ["podgroups", "workloads"])
def test_missing_right_to_list_groups_of_pods_is_named_by_the_snapshot(
    resource: str, with_groups: Cluster, dryrun: DryRun
) -> None:
    (number,) = (number for number, verb, name in EVERY_RIGHT if (verb, name) == ("list", resource))
    with_groups.grant(without(number, "list", [resource]))
    code, _, err = dryrun("snapshot", "--kubeconfig", with_groups.config)
    assert (code, err) == (0, f"note: not in the snapshot, as listing them is not allowed: {resource}\n")
    with_groups.grant([])
    code, _, err = dryrun("snapshot", "--kubeconfig", with_groups.config)
    assert code == 2
    assert f"list {resource}.scheduling.k8s.io" in err


def test_missing_right_to_list_workloads_makes_groups_uncertain(
    with_groups: Cluster, dryrun: DryRun, write: Write
) -> None:
    spec = {**referring("p", resourceClaimTemplateName="shape")["spec"], "restartPolicy": "Never"}
    template = {"metadata": {}, "spec": spec}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    asked = ("gangs", write("job.json", job), "--min-count", 1, "--kubeconfig", with_groups.config)
    with_groups.grant(ROLE["rules"])
    assert dryrun(*asked)[0] == 0
    with_groups.grant([rule for rule in ROLE["rules"] if rule.get("resources") != ["workloads"]])
    code, out, err = dryrun(*asked)
    assert code == 3, out + err
    assert "not known: not considered, as listing them is not allowed: workloads" in out
    saved = write("saved.json", dryrun("snapshot", "--kubeconfig", with_groups.config, "-o", "json")[1])
    code, out, err = dryrun(*asked[:-2], "--slices", saved)
    assert code == 3, out + err
    assert "not known: not considered, as they are not in the files of --slices: workloads" in out


@pytest.mark.parametrize(("name", "resource"), [("deploy/web", "deployments.apps"), ("job/web", "jobs.batch")])
def test_named_workloads_are_read_with_the_right_to_get_them(
    name: str, resource: str, cluster: Cluster, dryrun: DryRun
) -> None:
    cluster.grant(ROLE["rules"])
    err = dryrun(name, "--kubeconfig", cluster.config)[2]
    assert "default/web in cluster http" in err
    cluster.grant([one for one in ROLE["rules"] if "get" not in one["verbs"] or one.get("resources") == ["pods"]])
    err = dryrun(name, "--kubeconfig", cluster.config)[2]
    assert f"{name}: to get {resource} in the cluster is not allowed" in err


def test_only_the_rights_that_a_command_needs_are_named(cluster: Cluster, dryrun: DryRun) -> None:
    cluster.grant([])
    code, out, err = dryrun("capacity", "--kubeconfig", cluster.config)
    assert (code, out) == (2, "")
    plurals = ("resourceslices", "deviceclasses", "resourceclaims", "devicetaintrules")
    assert f"not allowed to {', '.join(f'list {plural}.resource.k8s.io' for plural in plurals)} (" in err


def test_without_the_right_to_list_nodes_only_devices_can_be_evaluated(
    cluster: Cluster, dryrun: DryRun, wanted: Path
) -> None:
    cluster.grant(without_nodes())
    code, out, err = dryrun(wanted, "--kubeconfig", cluster.config)
    assert (code, out) == (2, "")
    assert "not allowed to list nodes (" in err
    assert "with --devices-only, nodes are not read" in err
    for flags in ([], ["--until-fits"]):
        code, out, err = dryrun(wanted, "--kubeconfig", cluster.config, "--devices-only", *flags)
        assert code == 0, out + err
        assert "listing nodes is not allowed: nodes that slices name are assumed" in out
        assert "on node a" in out


SELECTED = {"nodeSelector": {"pool": "gpus"}}
EXPRESSION = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpus"]}]}
AFFINE = {
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [EXPRESSION]}}
    }
}


@pytest.mark.parametrize("flags", [[], ["--until-fits"]])
@pytest.mark.parametrize("fields", [SELECTED, AFFINE])
def test_labels_of_nodes_that_may_not_be_listed_are_assumed(
    fields: JSON, flags: list[str], cluster: Cluster, dryrun: DryRun, write: Write
) -> None:
    cluster.grant(without_nodes())
    pod = referring("p", resourceClaimTemplateName="shape")
    pod["spec"] |= fields
    asked = write("selecting.json", pod)
    code, out, err = dryrun(asked, "--kubeconfig", cluster.config, "--devices-only", *flags)
    assert code == 0, out + err
    assert "assuming the node has pool=gpus" in out


@pytest.mark.parametrize(("flags", "code"), [(["--strict-labels"], 1), (["--node-labels", "pool=gpus"], 0)])
def test_labels_of_nodes_that_may_not_be_listed_can_be_given(
    flags: list[str], code: int, cluster: Cluster, dryrun: DryRun, write: Write
) -> None:
    cluster.grant(without_nodes())
    pod = referring("p", resourceClaimTemplateName="shape")
    pod["spec"] |= SELECTED
    asked = write("selecting.json", pod)
    found, out, err = dryrun(asked, "--kubeconfig", cluster.config, "--devices-only", *flags)
    assert found == code, out + err
    assert "assuming" not in out


def test_the_user_to_act_as_is_named(cluster: Cluster, dryrun: DryRun, tmp_path: Path) -> None:
    with embedded(tmp_path, rbac=True) as (_, path, _client):
        code, _, err = dryrun("capacity", "--kubeconfig", path, "--as", "nobody")
    assert code == 2
    assert "as user 'nobody', by kubeconfig" in err
