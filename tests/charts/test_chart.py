# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered by Helm's own engine: valid objects, least rights, values that are checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from controller.main import controller
from dra_driver.cel import compile_selector
from dra_driver.cluster import NODES, ApiClient, Connection, Kind, StatusError, load_credentials
from dra_driver.dryrun.inventory import CLASSES
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions, service_account
from kubeletplugin.main import kubeletplugin
from tests.support.apiserver import CLAIMS, SLICES, connect
from tests.support.nodes import make_node
from tests.support.publishing import publishing
from tests.support.waiting import wait_for

helm_python = pytest.importorskip("helm_python", reason="there are wheels for x86-64 only")

CHART = Path(__file__).parents[2] / "charts/dra-driver-gpu"
COMMANDS: dict[str, click.Command] = {"dra-controller": controller, "dra-kubeletplugin": kubeletplugin}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "sandbox": {"simulatedNode": "h100x8-mixed", "logFormat": "json", "logVerbosity": 4},
    "gke": {"nvidiaDriverRoot": "/home/kubernetes/bin/nvidia", "deviceClasses": {"create": False}},
    "everything": {
        "nvidiaCDIHookPath": "/usr/bin/nvidia-cdi-hook",
        "fullnameOverride": "gpus",
        "image": {"repository": "registry.example.com/dra", "tag": "v1"},
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"create": False, "name": "existing"},
        "kubeletPlugin": {
            "podAnnotations": {"example.com/a": "b"},
            "nodeSelector": {"pool": "gpu"},
            "containers": {"kubeletplugin": {"resources": {"limits": {"memory": "128Mi"}}}},
        },
    },
}

JSON = dict[str, Any]
RBAC = {
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
}


def render(values: JSON) -> list[JSON]:
    """The chart's objects."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="release", namespace="dra-driver-gpu")
    manifests = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
    return [value for text in manifests for value in yaml.safe_load_all(text) if value]


def only(objects: list[JSON], kind: str) -> JSON:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


@pytest.mark.parametrize("minor", [34, 35, 36, 37])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_every_object_is_valid_in_every_release(values: JSON, minor: int) -> None:
    for one in render(values):
        kubernetes_validate.validate(one, f"1.{minor}", strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_helm_finds_nothing_to_complain_about(values: JSON) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    assert not report["errors"]
    assert not [message for message in report["messages"] if message["severity"] >= 2]


@pytest.mark.parametrize(
    "values",
    [
        {"nvidiaDriverRot": "/"},
        {"logVerbosity": "high"},
        {"logFormat": "xml"},
        {"kubeletPlugin": {"cdiRot": "/x"}},
        {"image": {"pullPolicy": "Sometimes"}},
    ],
)
def test_a_mistyped_value_is_refused(values: JSON) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_containers_are_told_only_what_their_commands_understand(values: JSON) -> None:
    pod = only(render(values), "DaemonSet")["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["controller", "kubeletplugin"]
    for container in pod["containers"]:
        command = COMMANDS[container["command"][0]]
        flags = {option.envvar for option in command.params if isinstance(option, click.Option)}
        told = {one["name"] for one in container["env"]} - {"NVIDIA_VISIBLE_DEVICES"}
        assert told <= flags
        required = {option.envvar for option in command.params if option.required}
        assert required <= told


def test_the_classes_are_those_that_dra_dryrun_assumes() -> None:
    rendered = {
        one["metadata"]["name"]: tuple(selector["cel"]["expression"] for selector in one["spec"]["selectors"])
        for one in render({})
        if one["kind"] == "DeviceClass"
    }
    assert rendered == {one.metadata.name: one.selectors for one in CLASSES}
    for (expression,) in rendered.values():
        assert compile_selector(expression).max_cost < 100


def test_notes_tell_what_to_type_next() -> None:
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render({}, name="release", namespace="dra-driver-gpu")
    (notes,) = (text for name, text in files.items() if name.endswith("NOTES.txt"))
    assert "kubectl get resourceslices" in notes


# The rights, enforced


@pytest.fixture
def restricted(tmp_path: Path) -> Iterator[tuple[ApiClient, ApiClient]]:
    """An administrator's client and one of the chart's service account, on a server that enforces the chart's RBAC."""
    objects = render({})
    account = only(objects, "ServiceAccount")["metadata"]
    options = ApiServerOptions(rbac=True)
    with ApiServer(options) as server:
        admin_file = server.write_kubeconfig(tmp_path / "admin")
        token = server.add_user(service_account(account["namespace"], account["name"]))
        document = yaml.safe_load(admin_file.read_text(encoding="utf-8"))
        document["users"][0]["user"] = {"token": token}
        (tmp_path / "account").write_text(yaml.safe_dump(document), encoding="utf-8")
        with (
            connect(admin_file) as admin,
            Connection(load_credentials(str(tmp_path / "account")), "test") as connection,
        ):
            for kind in ("ClusterRole", "ClusterRoleBinding"):
                admin.create(RBAC[kind], only(objects, kind))
            yield admin, ApiClient(connection)


def test_its_rights_are_enough_to_publish_and_to_read_claims(
    restricted: tuple[ApiClient, ApiClient], tmp_path: Path
) -> None:
    admin, account = restricted
    admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    devices = make_node(tmp_path / "node", "a30x4").describe()
    with publishing(account, "node-a", lambda: devices):
        (first,) = wait_for(lambda: admin.list(SLICES).items, "the slice")
        admin.delete(SLICES, first["metadata"]["name"])
        wait_for(lambda: admin.list(SLICES).items, "the slice again")
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    claim = {"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}
    admin.create(CLAIMS, claim, "default")
    assert account.get(CLAIMS, "c", "default")["metadata"]["name"] == "c"


def test_it_has_no_rights_that_it_does_not_need(restricted: tuple[ApiClient, ApiClient]) -> None:
    _, account = restricted
    with pytest.raises(StatusError, match="403"):
        account.list(CLAIMS)
    with pytest.raises(StatusError, match="403"):
        account.list(NODES)
    with pytest.raises(StatusError, match="403"):
        account.delete(CLAIMS, "c", "default")
