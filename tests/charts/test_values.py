# SPDX-License-Identifier: Apache-2.0
"""Values: mistyped and contradicting ones are refused with a reason, the others do what values.yaml says."""

import re
from typing import Any

import pytest
import yaml

from dra_driver.gpu.policy import GpuRule, MigPolicy, NodePolicy, ShareMode
from dra_driver.gpu.policy.parse import parse_policy

from . import values_table
from .domains import domains
from .rendering import CHART, JSON, MINORS, VALUES, chart, find, merged, refusal, render, render_files

# Refusals


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"nvidiaDriverRot": "/"}, "nvidiaDriverRot"),
        ({"logVerbosity": "high"}, "logVerbosity"),
        ({"logFormat": "xml"}, "logFormat"),
        ({"nvidiaDriverRoot": "run/nvidia"}, "nvidiaDriverRoot"),
        ({"kubeletPlugin": {"cdiRot": "/x"}}, "kubeletPlugin"),
        ({"kubeletPlugin": {"cdiRoot": "/x/"}}, "cdiRoot"),
        ({"kubeletPlugin": {"containers": {"gpus": {}}}}, "gpus"),
        ({"kubeletPlugin": {"tolerations": [{"keys": "x"}]}}, "tolerations"),
        ({"kubeletPlugin": {"podLabels": {"app.kubernetes.io/component": "x"}}}, "app.kubernetes.io/component"),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": "some"}}}}, "maxSurge"),
        ({"kubeletPlugin": {"metrics": {"metricsPath": "/healthz"}}}, "metricsPath"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"digest": "sha256:abc"}}, "digest"),
        ({"policy": {"gpus": [{"mig": "always"}]}}, "mig"),
        ({"policy": {"gpus": [{"match": {"model": ["x"]}}]}}, "model"),
        ({"policy": {"gpus": [{"shares": 0}]}}, "shares"),
        ({"policy": {"gpus": [{"bindingConditions": "Ready"}]}}, "bindingConditions"),
        ({"deviceClasses": {"migProfiles": ["big"]}}, "migProfiles"),
        ({"deviceClasses": {"gpu": {"extendedResourceName": "gpu"}}}, "extendedResourceName"),
        ({"webhook": {"failurePolicy": "Maybe"}}, "failurePolicy"),
        ({"controller": {"leaderElection": {"leaseDuration": 15}}}, "leaseDuration"),
        ({"featureGates": {"DynamicMIG": "yes"}}, "DynamicMIG"),
        (domains(imex={"mode": "manual"}), "mode"),
        (domains(imex={"hostSocketPath": "imex.sock"}), "hostSocketPath"),
        (domains(imex={"maxNodes": 0}), "maxNodes"),
        (domains(daemon={"replicas": 1}), "replicas"),
    ],
)
def test_a_mistyped_value_is_refused(values: JSON, path: str) -> None:
    assert path in refusal(values)


GPU = {"deviceClasses": {"gpu": {"extendedResourceName": "nvidia.com/gpu"}}}


@pytest.mark.parametrize(
    ("values", "minor", "text"),
    [
        ({"resources": {"gpus": {"enabled": False}}}, 37, "set policy.gpus[].publish=false"),
        (
            domains(imex={"isolation": "channel"}),
            37,
            "resources.computeDomains.imex.isolation=channel: IMEX channels do not",
        ),
        ({"featureGates": {"IMEXDaemonsWithDNSNames": False}}, 37, "always have host names"),
        ({"featureGates": {"ComputeDomainCliques": False}}, 37, "always in ComputeDomainCliques"),
        (
            {**domains(imex={"mode": "hostManaged"}), "featureGates": {"HostManagedIMEXDaemon": False}},
            37,
            "imex.mode=hostManaged contradicts",
        ),
        (
            {"kubeletPlugin": {"containers": {"computeDomains": {"gpuCliqueLabelEnabled": True}}}},
            37,
            "set nodeLabels to node-feature or file",
        ),
        ({"featureGates": {"MPSSupport": False}, "mps": {"enabled": True}}, 37, "mps.enabled=true contradicts"),
        ({"featureGates": {"PassthroughSupport": True}}, 37, "policy.gpus[].passthrough"),
        ({"featureGates": {"AllAlpha": True}}, 37, "name the gates"),
        ({"featureGates": {"DynamicMig": True}}, 37, "there is no such feature gate; known are AllAlpha"),
        ({"featureGates": {"DynamicMig": False}}, 37, "there is no such feature gate"),
        ({"featureGates": {"ConsumableShares": False}, "consumableShares": 4}, 37, "consumableShares=4 contradicts"),
        ({"featureGates": {"DeviceMetadata": False}, "kubeletPlugin": {"deviceMetadata": True}}, 37, "contradicts"),
        (
            {"featureGates": {"DRAListTypeAttributes": True}, "policy": {"listTypeAttributes": False}},
            37,
            "policy.listTypeAttributes=false contradicts",
        ),
        ({"simulatedNode": "a30x4", "nvidiaDriverRoot": "/"}, 37, "simulatedNode and nvidiaDriverRoot"),
        (GPU, 33, "resource.k8s.io/v1beta2 has no extended resource names"),
        ({**GPU, "resourceApiVersion": "v1beta1"}, 37, "resource.k8s.io/v1beta1 has no extended resource names"),
        (merged(GPU, {"deviceClasses": {"create": False}}), 37, "deviceClasses.create=false"),
        (merged(GPU, {"deviceClasses": {"mig": {"extendedResourceName": "nvidia.com/gpu"}}}), 37, "given twice"),
        (
            {"deviceClasses": {"migProfiles": ["1g.5gb"], "mig": {"extendedResourceName": "nvidia.com/mig-1g.5gb"}}},
            37,
            "given twice",
        ),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}}, 32, "use maxUnavailable"),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}}, 37, "exactly one of maxSurge"),
        ({"kubeletPlugin": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}}}, 37, "exactly one of"),
        (
            {"kubeletPlugin": {"metrics": {"gpuHttpEndpoint": "127.0.0.1:8081"}}},
            37,
            "gpuHttpEndpoint=127.0.0.1:8081 and controllerHttpEndpoint=:8081 have the same port",
        ),
        ({"serviceAccount": {"create": False}}, 37, "serviceAccount.name: which accounts"),
        (
            {"controller": {"replicas": 2, "leaderElection": {"enabled": False}}},
            37,
            "controller.replicas=2: several replicas need controller.leaderElection.enabled=true",
        ),
        (
            {"controller": {"leaderElection": {"renewDeadline": "15s"}}},
            37,
            "leaseDuration=15s must be longer than renewDeadline=15s",
        ),
        ({"controller": {"leaderElection": {"retryPeriod": "9s"}}}, 37, "1.2 times retryPeriod=9s"),
        ({"webhook": {"enabled": True, "tls": {"mode": "secret"}}}, 37, "webhook.tls.secret.name: which secret"),
        (
            {"webhook": {"enabled": True, "tls": {"mode": "secret", "secret": {"name": "x"}}}},
            37,
            "webhook.tls.secret.caBundle: the API server has to trust",
        ),
        (
            {"webhook": {"enabled": True, "tls": {"certManager": {"issuerType": "clusterissuer"}}}},
            37,
            "issuerName: which clusterissuer",
        ),
        (
            {"webhook": {"enabled": True, "serviceAccount": {"create": False}}},
            37,
            "webhook.serviceAccount.name: which account",
        ),
    ],
)
def test_values_that_contradict_each_other_or_the_cluster_are_refused(values: JSON, minor: int, text: str) -> None:
    assert text in refusal(values, minor)


def test_the_default_namespace_is_refused_unless_it_is_wanted() -> None:
    assert "wants a namespace of its own" in refusal({}, namespace="default")
    assert render({"allowDefaultNamespace": True}, namespace="default")
    assert render({"namespaceOverride": "gpus"}, namespace="default")


def test_releases_before_1_32_are_refused() -> None:
    assert chart().metadata["kubeVersion"] == f">=1.{MINORS[0]}.0-0"


# What values do


def policy(values: JSON) -> NodePolicy:
    """The policy that the driver would read."""
    return parse_policy(find(render(values), "ConfigMap", "policy")["data"]["policy.yaml"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, NodePolicy()),
        ({"featureGates": {"DynamicMIG": True}}, NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC),))),
        ({"featureGates": {"DynamicMIG": False}}, NodePolicy((GpuRule(mig=MigPolicy.STATIC),))),
        (
            {"featureGates": {"DynamicMIG": False}, "policy": {"gpus": [{"mig": "dynamic"}]}},
            NodePolicy((GpuRule(mig=MigPolicy.STATIC), GpuRule(mig=MigPolicy.DYNAMIC))),
        ),
        ({"featureGates": {"NVMLDeviceHealthCheck": True}}, NodePolicy()),
        ({"featureGates": {"NVMLDeviceHealthCheck": False}}, NodePolicy((GpuRule(health=False),))),
        ({"featureGates": {"DRAListTypeAttributes": True}}, NodePolicy(list_type_attributes=True)),
        ({"consumableShares": "memory"}, NodePolicy((GpuRule(shares=ShareMode.MEMORY),))),
        ({"consumableShares": "4"}, NodePolicy((GpuRule(shares=4),))),
        ({"consumableShares": 4}, NodePolicy((GpuRule(shares=4),))),
        (
            {"featureGates": {"DynamicMIG": True}, "policy": {"gpus": [{"match": {"indexes": [0]}, "mig": "static"}]}},
            NodePolicy((GpuRule(mig=MigPolicy.DYNAMIC), GpuRule(indexes=(0,), mig=MigPolicy.STATIC))),
        ),
    ],
)
def test_the_policy_says_what_values_of_either_chart_ask_for(values: JSON, expected: NodePolicy) -> None:
    assert policy(values) == expected


@pytest.mark.parametrize("name", VALUES)
def test_the_driver_understands_every_policy(name: str) -> None:
    policy(VALUES[name])


def test_the_example_of_a_policy_in_the_values_is_one() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    begin = lines.index("# policy:")
    end = next(index for index in range(begin, len(lines)) if not lines[index])
    example = yaml.safe_load("\n".join(line.removeprefix("# ") for line in lines[begin:end]))
    chart().validate_schema(example)
    assert policy(example).rules[0].mig is MigPolicy.DYNAMIC


def test_a_change_of_the_policy_restarts_nothing() -> None:
    before, after = render({}), render({"policy": {"gpus": [{"publish": False}]}})
    assert [one for one in before if one not in after] == [find(before, "ConfigMap")]


@pytest.mark.parametrize(
    ("minor", "apis", "expected"),
    [
        (32, (), "v1beta1"),
        (33, (), "v1beta2"),
        (34, (), "v1"),
        (37, (), "v1"),
        (33, ("v1beta1",), "v1beta1"),
        (33, ("v1beta1", "v1beta2"), "v1beta2"),
        (33, ("v1beta2", "v1beta1", "v1alpha3"), "v1beta2"),
        (36, ("v1beta1",), "v1beta1"),
        (36, ("v1beta1/DeviceClass",), "v1beta1"),
        (34, ("v1beta1", "v1beta1/DeviceClass", "v1", "v1/DeviceClass"), "v1"),
    ],
)
def test_the_newest_version_of_the_api_is_used(minor: int, apis: tuple[str, ...], expected: str) -> None:
    versions = {
        one["apiVersion"]
        for one in render({}, minor, apis=[f"resource.k8s.io/{api}" for api in apis])
        if one["kind"].startswith(("Dev", "ResourceC"))
    }
    assert versions == {f"resource.k8s.io/{expected}"}


@pytest.mark.parametrize(("minor", "apis"), [(31, ()), (33, ("v1", "v1/Pod"))])
def test_a_cluster_without_the_api_is_refused(minor: int, apis: tuple[str, ...]) -> None:
    assert "the cluster serves no version of resource.k8s.io" in refusal({}, minor, apis=apis)


def test_the_version_of_the_api_may_be_said() -> None:
    assert (
        find(render({"resourceApiVersion": "v1beta1"}), "DeviceClass", "mig")["apiVersion"] == "resource.k8s.io/v1beta1"
    )


@pytest.mark.parametrize(
    ("values", "version", "apis", "expected"),
    [
        ({}, "", (), "/"),
        ({}, "v1.33.5-gke.1080000", (), "/home/kubernetes/bin/nvidia"),
        ({"nvidiaDriverRoot": "/"}, "v1.33.5-gke.1080000", (), "/"),
        ({}, "", ("nvidia.com/v1/ClusterPolicy",), "/"),
        ({"nvidiaDriverRoot": "/run/nvidia/driver"}, "", (), "/run/nvidia/driver"),
    ],
)
def test_the_driver_root_is_that_of_the_platform(
    values: JSON, version: str, apis: tuple[str, ...], expected: str
) -> None:
    pod = find(render(values, version=version, apis=apis), "DaemonSet")["spec"]["template"]["spec"]
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert paths["driver-root"] == expected
    for container in pod["containers"]:
        assert {"name": "NVIDIA_DRIVER_ROOT", "value": expected} in container["env"]


def test_install_page_names_the_kinds_that_templates_look_for() -> None:
    page = (values_table.PAGE.parents[1] / "how-to/install.md").read_text(encoding="utf-8")
    section = page.partition("\n### Manifests")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w.]+/v1/\w+)`", section))
    assert set(re.findall(r"--api-versions (\S+)", section)) <= named
    values: JSON = {"serviceMonitor": {"create": "auto"}}
    assert [api for api in named if render(values, apis=[api]) == render(values)] == []
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").glob("*.tpl"))
    asked = set(re.findall(r'APIVersions\.Has "([\w.]+/v1/\w+)"', templates)) - {"nvidia.com/v1/ClusterPolicy"}
    assert asked <= named


def kinds(values: JSON, **options: Any) -> set[str]:
    return {one["kind"] for one in render(values, **options)}


@pytest.mark.parametrize(
    ("kind", "present", "absent"),
    [
        ("ResourceQuota", {"version": "v1.33.5-gke.1080000"}, {}),
        ("ResourceQuota", {"version": "v1.33.5-gke.1080000"}, {"version": "v1.33.5-gke.1", "namespace": "kube-system"}),
    ],
)
def test_objects_for_one_platform_are_made_there_only(kind: str, present: JSON, absent: JSON) -> None:
    assert kind in kinds({}, **present)
    assert kind not in kinds({}, **absent)


def test_objects_for_one_platform_may_be_forced_or_left_out() -> None:
    assert "ResourceQuota" in kinds({"resourceQuota": {"create": "always"}})
    assert "ResourceQuota" not in kinds({"resourceQuota": {"create": "never"}}, version="v1.33.5-gke.1")


def test_a_quota_is_only_for_system_priorities() -> None:
    values = {
        **domains(daemon={"priorityClassName": "mine"}),
        "kubeletPlugin": {"priorityClassName": "mine"},
        "controller": {"priorityClassName": ""},
    }
    assert "ResourceQuota" not in kinds(merged(values, {"resourceQuota": {"create": "always"}}))


def test_openshift_lets_the_node_pods_be_privileged_and_chooses_user_ids_itself() -> None:
    apis = ["security.openshift.io/v1/SecurityContextConstraints"]
    objects = render({}, apis=apis)
    binding = find(objects, "RoleBinding", "scc")
    assert binding["roleRef"]["name"] == "system:openshift:scc:privileged"
    accounts = [find(objects, "ServiceAccount", name)["metadata"]["name"] for name in ("kubeletplugin", "daemon")]
    assert [one["name"] for one in binding["subjects"]] == accounts
    assert "runAsUser" not in find(objects, "Deployment")["spec"]["template"]["spec"]["securityContext"]


@pytest.mark.parametrize(
    "path", [CHART / f"values{name}.yaml" for name in ("", "-sandbox", "-gpu-operator")], ids=lambda path: path.name
)
def test_shipped_values_render_with_helm_defaults(path: Any) -> None:
    assert render_files(yaml.safe_load(path.read_text(encoding="utf-8")))


# How values are described


def test_the_page_about_values_is_up_to_date() -> None:
    """`python -m tests.charts.values_table` writes it anew."""
    assert values_table.PAGE.read_text(encoding="utf-8") == values_table.page()


def test_every_value_is_described() -> None:
    assert not [".".join(one.path) for one in values_table.values() if one.default is not None and not one.text]


def test_every_value_has_its_place_in_the_schema() -> None:
    schema = chart().schema
    assert schema is not None

    def resolve(node: JSON) -> JSON:
        return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node

    for one in values_table.values():
        node = schema
        for step in one.path:
            node = resolve(resolve(node)["properties"][step])


def test_nothing_in_the_schema_takes_unknown_names_but_what_is_kubernetes_own() -> None:
    schema = chart().schema
    assert schema is not None
    free: set[str] = set()

    def look(name: str, node: JSON) -> None:
        if node.get("type") == "object" and "additionalProperties" not in node:
            free.add(name)
        for key, inner in node.get("properties", {}).items():
            look(key, inner)

    look("", schema)
    for name, node in schema["$defs"].items():
        look(name, node)
    assert free == {
        "global",
        "limits",
        "requests",
        "nodeAffinity",
        "podAffinity",
        "podAntiAffinity",
        "podSecurityContext",
        "securityContext",
        "strategy",
    }


def test_every_gate_of_the_official_chart_is_said_to_be_translated_or_refused() -> None:
    page = (values_table.PAGE.parents[1] / "how-to/migrate-from-nvidias-dra-driver.md").read_text(encoding="utf-8")
    known = refusal({"featureGates": {"NoSuchGate": True}}).partition("known are ")[2].split(", ")
    for gate in known:
        name = gate.split()[0].strip('"')
        assert f"`{name}`" in page or "Logging" in name
