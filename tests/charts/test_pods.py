# SPDX-License-Identifier: Apache-2.0
"""The pods: what containers are told their commands understand, what they need is mounted, and they may no more."""

import re
from collections.abc import Iterator

import click
import pytest

from controller.cluster.main import cluster_controller
from controller.main import controller
from controller.webhook.main import webhook
from dra_driver.domains.names import CHANNEL_CLASS, DAEMON_CLASS
from dra_driver.dryrun.inventory import CLASSES
from dra_driver.scheduler.cel import compile_selector
from kubeletplugin.features.mps.main import mps
from kubeletplugin.main import kubeletplugin

from .rendering import JSON, VALUES, find, merged, render, render_files

COMMANDS: dict[str, click.Command] = {
    "dra-controller": controller,
    "dra-kubeletplugin": kubeletplugin,
    "dra-cluster-controller": cluster_controller,
    "dra-webhook": webhook,
    "dra-mps": mps,
}
NOT_OURS = {"NVIDIA_VISIBLE_DEVICES"}  # NVIDIA's container runtime reads it


def pods(objects: list[JSON]) -> Iterator[JSON]:
    """The pod of each workload."""
    for one in objects:
        if one["kind"] in ("DaemonSet", "Deployment"):
            yield one["spec"]["template"]["spec"]


def containers(objects: list[JSON], prefix: str = "dra-") -> Iterator[JSON]:
    """Those that run a command of ours."""
    for pod in pods(objects):
        for one in [*pod.get("initContainers", ()), *pod["containers"]]:
            if one["command"][0].startswith(prefix):
                yield one


def flags(command: click.Command) -> dict[str, click.Option]:
    """Environment variable -> flag."""
    return {str(one.envvar): one for one in command.params if isinstance(one, click.Option)}


@pytest.mark.parametrize("name", VALUES)
def test_containers_are_told_what_their_commands_understand(name: str) -> None:
    for container in containers(render(VALUES[name])):
        script, *arguments = container["command"]
        command = COMMANDS[script]
        known = flags(command)
        if isinstance(command, click.Group):
            chosen = [command.commands[one] for one in arguments if one in command.commands]
            known = {
                **known,
                **{key: flag for one in chosen or command.commands.values() for key, flag in flags(one).items()},
            }
        told = {one["name"] for one in container["env"]}
        assert told - NOT_OURS <= set(known)
        assert {key for key, flag in known.items() if flag.required} <= told


@pytest.mark.parametrize("name", VALUES)
def test_environment_values_of_containers_are_valid_flags(name: str) -> None:
    for container in containers(render(VALUES[name])):
        command = COMMANDS[container["command"][0]]
        context = click.Context(command)
        for one in container["env"]:
            flag = flags(command).get(one["name"])
            if flag is not None and "value" in one:
                flag.type.convert(one["value"], flag, context)


def test_each_gpu_node_runs_a_controller_and_a_kubelet_plugin() -> None:
    names = [one["name"] for one in find(render({}), "DaemonSet")["spec"]["template"]["spec"]["containers"]]
    assert names == ["controller", "kubeletplugin"]


@pytest.mark.parametrize("name", VALUES)
def test_every_path_that_a_container_is_told_is_there(name: str) -> None:
    for pod in pods(render(VALUES[name])):
        volumes = {one["name"] for one in pod.get("volumes", ())}
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            mounts = container.get("volumeMounts", [])
            assert {one["name"] for one in mounts} <= volumes
            assert len({one["mountPath"] for one in mounts}) == len(mounts)
            told = {one["name"]: one.get("value", "") for one in container.get("env", ())}
            for variable in (
                "CDI_ROOT",
                "KUBELET_REGISTRAR_DIRECTORY_PATH",
                "POLICY_FILE",
                "TLS_CERT_FILE",
                "HOST_ROOT",
            ):
                if variable in told:
                    assert any(told[variable].startswith(one["mountPath"]) for one in mounts), (container, variable)


def test_the_kubelet_plugin_has_its_folders_under_the_names_that_the_host_has() -> None:
    """Kubelet and the container runtime get paths from the plugin."""
    pod = find(render(VALUES["driver-container"]), "DaemonSet")["spec"]["template"]["spec"]
    hosts = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    plugin = pod["containers"][1]
    for mount in plugin["volumeMounts"]:
        if mount["name"] in ("plugins-registry", "data", "cdi"):
            assert mount["mountPath"] == hosts[mount["name"]]
    assert hosts["data"] == "/var/lib/k0s/kubelet/plugins/gpu.nvidia.com"


@pytest.mark.parametrize("name", VALUES)
def test_only_containers_that_open_gpus_are_privileged(name: str) -> None:
    simulated = bool(VALUES[name].get("simulatedNode"))
    objects = render(VALUES[name])
    for pod in [*pods(objects), *(one["spec"] for one in objects if one["kind"] == "Pod")]:
        serves_programs = any(one["command"] == ["dra-mps"] for one in pod["containers"])
        rules = (VALUES[name].get("policy") or {}).get("gpus", ())
        wanted = (VALUES[name].get("kubeletPlugin") or {}).get("hostPID") or any(
            one.get("passthrough") for one in rules
        )
        takes_gpus = wanted and any(one["command"] == ["dra-kubeletplugin"] for one in pod["containers"])
        shared = {"hostPID"} if serves_programs or takes_gpus else set()
        assert {"hostNetwork", "hostPID", "hostIPC"} & set(pod) == shared
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            context = container["securityContext"]
            opens_gpus = not simulated and (
                container["command"][0] in ("dra-controller", "dra-kubeletplugin", "dra-mps")
                or container["name"] == "driver-ready"  # SELinux lets no other container read the operator's file
            )
            assert bool(context.get("privileged")) == opens_gpus, container["name"]
            if not opens_gpus:
                assert context["allowPrivilegeEscalation"] is False
                assert context["readOnlyRootFilesystem"] is True
                assert context["capabilities"]["drop"] == ["ALL"]


ALSO_WRITABLE = {"kubeletplugin": ["cgroup"]}
"""By container: the plugin limits the GPU memory of cgroups."""


def test_the_hosts_files_are_read_only_but_for_a_few_folders() -> None:
    for pod in pods(render(merged(VALUES["everything"], {"cleanup": {"enabled": False}}))):
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            writable = {one["name"] for one in container.get("volumeMounts", ()) if not one.get("readOnly")}
            assert writable <= {
                "plugins-registry",
                "data",
                "compute-domains",
                "cdi",
                *ALSO_WRITABLE.get(container["name"], ()),
            }
            assert container["name"] != "controller" or not writable


def test_the_folder_that_is_removed_before_an_uninstall_is_below_one_that_is_mounted() -> None:
    """The place of a mount cannot be removed, nor anything in a file system that is read-only."""
    (cleanup,) = find(render(VALUES["cleanup"]), "DaemonSet")["spec"]["template"]["spec"]["initContainers"]
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in cleanup["volumeMounts"]}
    told = {one["name"]: one.get("value", "") for one in cleanup["env"]}
    plugins = told["KUBELET_PLUGINS_DIRECTORY_PATH"]
    assert mounts[plugins] is False
    assert not [path for path in mounts if path.startswith(f"{plugins}/")]


def test_hook_path_is_passed_to_the_plugin_and_the_check() -> None:
    values = {"nvidiaCDIHookPath": "/opt/nvidia-cdi-hook", "kubeletPlugin": {"check": {"enabled": True}}}
    told = {
        container["name"]: one["value"]
        for container in containers(render(values))
        for one in container["env"]
        if one["name"] == "NVIDIA_CDI_HOOK_PATH"
    }
    assert told == {"check": "/opt/nvidia-cdi-hook", "kubeletplugin": "/opt/nvidia-cdi-hook"}


def test_pods_that_need_no_root_have_none() -> None:
    objects = render({"webhook": {"enabled": True}})
    for name in ("controller", "webhook"):
        security = find(objects, "Deployment", name)["spec"]["template"]["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("name", VALUES)
def test_every_container_says_what_it_needs(name: str) -> None:
    for container in containers(render(VALUES[name])):
        if container["name"] != "check":
            assert "requests" in container["resources"]
            # What MPS servers need is up to the programs that they serve.
            assert container["name"] == "mps" or "memory" in container["resources"]["limits"]


def test_every_server_is_probed_and_no_other() -> None:
    for values in (VALUES["everything"], VALUES["bare"]):
        for container in containers(render(values)):
            ports = {one["name"] for one in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert (probe in container) == bool(ports)
                if ports:
                    assert {container[probe]["httpGet"]["port"]} == ports


def strategy_and_identity(values: JSON, minor: int) -> tuple[JSON, bool]:
    daemonset = find(render(values, minor), "DaemonSet")
    plugin = daemonset["spec"]["template"]["spec"]["containers"][1]
    return daemonset["spec"]["updateStrategy"], "POD_UID" in {one["name"] for one in plugin["env"]}


@pytest.mark.parametrize(
    ("values", "minor", "surge", "unavailable", "own_sockets"),
    [
        ({}, 37, "10%", 0, True),
        ({}, 33, "10%", 0, True),
        ({}, 32, 0, "10%", False),
        ({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, 33, 1, 0, True),
        ({"rollingUpdate": {"maxUnavailable": 1}}, 37, None, 1, False),
    ],
)
def test_a_pod_takes_over_from_the_old_one_where_kubelet_knows_both(
    values: JSON, minor: int, surge: object, unavailable: object, own_sockets: bool
) -> None:
    strategy, told = strategy_and_identity({"kubeletPlugin": {"updateStrategy": values}}, minor)
    assert strategy["rollingUpdate"].get("maxSurge") == surge
    assert strategy["rollingUpdate"]["maxUnavailable"] == unavailable
    assert told == own_sockets


def test_without_leader_election_the_old_pod_ends_first() -> None:
    election: JSON = {"controller": {"leaderElection": {"enabled": False}}}
    objects = render(election)
    assert find(objects, "Deployment")["spec"]["strategy"]["type"] == "Recreate"
    (role,) = (one for one in objects if one["kind"] == "Role" and one["metadata"]["name"].endswith("-controller"))
    assert "leases" not in {resource for rule in role["rules"] for resource in rule["resources"]}
    assert find(render({}), "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"


def test_pods_do_not_change_with_the_charts_version() -> None:
    """A label that did would restart everything for a change of a comment."""
    for one in render(VALUES["everything"]):
        if one["kind"] in ("DaemonSet", "Deployment"):
            labels = set(one["spec"]["template"]["metadata"]["labels"])
            assert not labels & {"helm.sh/chart", "app.kubernetes.io/version"}


def test_selectors_pick_one_workload_each() -> None:
    objects = [one for one in render(VALUES["everything"]) if one["kind"] in ("DaemonSet", "Deployment")]
    for one in objects:
        chosen = one["spec"]["selector"]["matchLabels"].items()
        assert [
            other["metadata"]["name"]
            for other in objects
            if chosen <= other["spec"]["template"]["metadata"]["labels"].items()
        ] == [one["metadata"]["name"]]


# Where they run


@pytest.mark.parametrize("name", VALUES)
def test_pods_run_on_linux_and_where_else_the_values_say(name: str) -> None:
    for one in pods(render(VALUES[name])):
        assert one["nodeSelector"]["kubernetes.io/os"] == "linux"
    chosen: JSON = {"nodeSelector": {"pool": "a"}}
    for one in pods(render({"kubeletPlugin": chosen, "controller": chosen})):
        assert one["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "a"}


@pytest.mark.parametrize("component", ["controller", "webhook"])
def test_replicas_would_rather_not_share_a_node_unless_the_values_say_otherwise(component: str) -> None:
    def affinity(values: JSON) -> JSON:
        objects = render(merged({"webhook": {"enabled": True}}, {component: {"affinity": values}}))
        found: JSON = find(objects, "Deployment", component)["spec"]["template"]["spec"]["affinity"]
        return found

    (term,) = affinity({})["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/component"] == component
    elsewhere: JSON = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert affinity(elsewhere)["podAntiAffinity"] == elsewhere["podAntiAffinity"]
    nodes: JSON = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert set(affinity(nodes)) == {"nodeAffinity", "podAntiAffinity"}


def test_only_several_replicas_have_a_budget_and_broken_pods_keep_no_node() -> None:
    assert not [one for one in render({"webhook": {"enabled": True}}) if one["kind"] == "PodDisruptionBudget"]
    budgets = [one["spec"] for one in render(VALUES["everything"]) if one["kind"] == "PodDisruptionBudget"]
    assert [(one["maxUnavailable"], one["unhealthyPodEvictionPolicy"]) for one in budgets] == [(1, "AlwaysAllow")] * 2


def test_cleanup_pods_use_the_pod_values_of_the_kubelet_plugin() -> None:
    labels = {"sidecar.istio.io/inject": "false"}
    plugin = {
        "podLabels": labels,
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"pool": "a"},
        "priorityClassName": "mine",
    }
    driver, cleanup = (
        find(render({"kubeletPlugin": plugin, "cleanup": {"enabled": on}}), "DaemonSet")["spec"]["template"]
        for on in (False, True)
    )
    assert labels.items() <= cleanup["metadata"]["labels"].items()
    assert cleanup["metadata"]["annotations"] == {"a": "b"}
    for key in (
        "nodeSelector",
        "tolerations",
        "affinity",
        "priorityClassName",
        "securityContext",
        "serviceAccountName",
    ):
        assert cleanup["spec"][key] == driver["spec"][key]


def test_liveness_probe_ignores_calls_that_hang_in_the_driver() -> None:
    """A call may take 45 seconds before kubelet gives up on it, and a restart mends no driver."""
    for container in containers(render(VALUES["everything"])):
        if "livenessProbe" in container:
            probe = container["livenessProbe"]
            assert probe["httpGet"]["path"] == "/healthz"
            assert probe["periodSeconds"] * probe["failureThreshold"] > 45


# Classes


def selectors(values: JSON) -> dict[str, tuple[str, ...]]:
    return {
        one["metadata"]["name"]: tuple(selector["cel"]["expression"] for selector in one["spec"]["selectors"])
        for one in render(values)
        if one["kind"] == "DeviceClass"
    }


def test_the_classes_are_those_that_dra_dryrun_assumes() -> None:
    rendered = selectors({})
    assert set(rendered) == {
        *("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"),
        *(CHANNEL_CLASS, DAEMON_CLASS),
    }
    for one in CLASSES:
        assert rendered[one.metadata.name] == one.selectors


def test_selectors_of_classes_compile_and_cost_little() -> None:
    found = selectors(VALUES["extended-resources"])
    assert {"mig-1g.10gb.nvidia.com", "mig-1g.10gb.me.nvidia.com"} <= set(found)
    for expressions in found.values():
        for expression in expressions:
            assert compile_selector(expression).max_cost < 100


def test_extended_resources_are_named_as_the_device_plugin_does() -> None:
    names = {
        one["metadata"]["name"]: one["spec"].get("extendedResourceName")
        for one in render(VALUES["extended-resources"])
        if one["kind"] == "DeviceClass"
    }
    assert names["gpu.nvidia.com"] == "nvidia.com/gpu"
    assert names["mig-1g.10gb.nvidia.com"] == "nvidia.com/mig-1g.10gb"
    assert names["mig-1g.10gb.me.nvidia.com"] == "nvidia.com/mig-1g.10gb.me"
    assert names["vfio.gpu.nvidia.com"] is None
    assert not any("extendedResourceName" in one["spec"] for one in render({}) if one["kind"] == "DeviceClass")


NODES: dict[str, tuple[dict[str, str], bool]] = {
    "node feature discovery": ({"feature.node.kubernetes.io/pci-10de.present": "true"}, True),
    "set by hand": ({"nvidia.com/gpu.present": "true"}, True),
    "GKE": ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, True),
    "EKS Auto Mode": ({"eks.amazonaws.com/instance-gpu-manufacturer": "nvidia"}, True),
    "EKS with Karpenter": ({"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"}, True),
    "EKS with cluster-autoscaler": ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"}, True),
    "AKS": ({"kubernetes.azure.com/accelerator": "nvidia"}, True),
    "AKS, older": ({"accelerator": "nvidia"}, True),
    "AKS, without a GPU": ({"kubernetes.azure.com/mode": "user"}, False),
    "EKS, GPU of another vendor": ({"eks.amazonaws.com/instance-gpu-manufacturer": "amd"}, False),
}


@pytest.mark.parametrize(("labels", "selected"), NODES.values(), ids=list(NODES))
def test_the_daemonset_runs_on_the_gpu_nodes_of_each_cloud(labels: dict[str, str], selected: bool) -> None:
    pod = find(render({}), "DaemonSet", "kubeletplugin")["spec"]["template"]["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]

    def matches(expression: JSON) -> bool:
        value = labels.get(expression["key"])
        return value is not None and (expression["operator"] == "Exists" or value in expression["values"])

    terms = required["nodeSelectorTerms"]
    assert any(all(map(matches, term["matchExpressions"])) for term in terms) == selected


@pytest.mark.parametrize(
    ("repository", "registry", "image"),
    [
        ("dra-driver-gpu", "", "dra-driver-gpu:1"),
        ("dra-driver-gpu", "mirror.example.com:5000", "mirror.example.com:5000/dra-driver-gpu:1"),
        ("team/dra-driver-gpu", "mirror.example.com/k8s/", "mirror.example.com/k8s/team/dra-driver-gpu:1"),
        ("registry.example.com/team/dra-driver-gpu", "mirror.example.com", "mirror.example.com/team/dra-driver-gpu:1"),
        ("localhost/dra-driver-gpu", "mirror.example.com", "mirror.example.com/dra-driver-gpu:1"),
    ],
)
def test_the_registry_of_a_parent_chart_is_used_for_every_container(repository: str, registry: str, image: str) -> None:
    values: JSON = {
        "global": {"imageRegistry": registry},
        "image": {"repository": repository, "tag": "1"},
        "webhook": {"enabled": True},
        "mps": {"enabled": True},
        "kubeletPlugin": {"check": {"enabled": True}},
    }
    text = "".join(render_files(values).values())
    assert set(re.findall(r"^ *(?:- )?image: \"?([^\"\n]+)", text, re.M)) == {image}
