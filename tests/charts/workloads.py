# SPDX-License-Identifier: Apache-2.0
"""The chart's containers as processes, as they are rendered, on an API server that enforces the rendered RBAC."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import NAMESPACES, NODES, ROLES
from dra_driver.sandbox.apiserver import ApiServerOptions
from tests.support.apiserver import connect
from tests.support.faultyserver import Faults, FaultyServer
from tests.support.preloaded import start

from .rendering import JSON, NAMESPACE, find, merged, render

NODE = "node-a"
STARTUP_TAINT = "gpu.nvidia.com/starting"
MODULES: Mapping[str, str] = {
    "dra-controller": "controller.main",
    "dra-kubeletplugin": "kubeletplugin.main",
    "dra-cluster-controller": "controller.cluster.main",
    "dra-webhook": "controller.webhook.main",
}
"""Command -> what its script runs."""

_RBAC: Mapping[str, Kind] = {
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ROLES,
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings", namespaced=True),
}
_MOUNTED = ("unshare", "--mount", "bash", "-euc")
_DOWNWARD: Mapping[str, str] = {
    "spec.nodeName": NODE,
    "metadata.uid": "5f6d3f4e-0d6c-4b53-9f0e-6f3c8c1a2b3d",
    "metadata.name": "pod",
    "metadata.namespace": NAMESPACE,
}


class Containers:
    """Containers of one rendering, run as processes of their service accounts on `NODE`."""

    def __init__(
        self, objects: list[JSON], admin: ApiClient, faults: Faults, kubeconfigs: Mapping[str, Path], folder: Path
    ) -> None:
        self.admin = admin
        self.faults = faults
        self.folder = folder
        self.policy = folder / "policy.yaml"
        self._objects = objects
        self._kubeconfigs = kubeconfigs
        self._running: list[subprocess.Popen[bytes]] = []
        self.policy.write_text(find(objects, "ConfigMap", "policy")["data"]["policy.yaml"], encoding="utf-8")

    def start(self, kind: str, container: str, *, mounted: bool = False) -> subprocess.Popen[bytes]:
        """Run a container, or an init container, of the only workload of this kind.

        `mounted`: in `folder`, it can write to its volumes and nowhere else, as in a pod; `may_mount` says whether.
        """
        pod = find(self._objects, kind)["spec"]["template"]["spec"]
        (spec,) = (one for one in [*pod.get("initContainers", ()), *pod["containers"]] if one["name"] == container)
        account = (
            self._kubeconfigs[pod["serviceAccountName"]] if pod.get("automountServiceAccountToken", True) else None
        )
        identity = {"KUBECONFIG": str(account)} if account else {}
        command = [sys.executable, "-m", MODULES[spec["command"][0]], *spec["command"][1:]]
        if mounted:
            command = [*_MOUNTED, _mounting(self.folder, spec), "bash", *command]
        with (self.folder / "log").open("ab") as log:
            environment = {**os.environ, **self._environment(spec), **identity}
            begin = subprocess.Popen if mounted else start
            process = begin(command, stdout=log, stderr=log, env=environment)
        self._running.append(process)
        return process

    def upgrade(self, objects: list[JSON]) -> None:
        """What is started from now on is of another rendering."""
        self._objects = objects

    @property
    def log(self) -> str:
        """What all of them logged."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def terminate(self) -> None:
        """Ask all of them to end, and wait until they have."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(60)

    def kill(self) -> None:
        """End all of them."""
        for process in self._running:
            process.kill()
            process.wait()

    def _environment(self, spec: JSON) -> dict[str, str]:
        found = {one["name"]: _value(one) for one in spec["env"]}
        mounted = {"POLICY_FILE": self.policy, "HOST_ROOT": self.folder}
        return {**found, **{name: str(path) for name, path in mounted.items() if name in found}}


def may_mount() -> bool:
    """Whether this process may have mounts of its own."""
    command = [*_MOUNTED, "mount -t tmpfs tmpfs /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


def _mounting(folder: Path, spec: JSON) -> str:
    """A script that mounts a container's volumes, makes the rest of `folder` read-only, and runs its arguments."""
    volumes = sorted(one["mountPath"] for one in spec["volumeMounts"] if not one.get("readOnly"))  # outer ones first
    mounts = [*(f"mount --bind {path} {path}" for path in volumes), f"mount --rbind {folder} {folder}"]
    return "\n".join([*mounts, f"mount -o remount,bind,ro {folder}", 'exec "$@"'])


def _value(variable: JSON) -> str:
    source: Any = variable.get("valueFrom")
    return str(variable["value"]) if source is None else _DOWNWARD[source["fieldRef"]["fieldPath"]]


def paths(folder: Path) -> JSON:
    """Values by which the chart's pods keep to a folder."""
    return {
        "kubeletPlugin": {
            "kubeletRegistrarDirectoryPath": str(folder / "registry"),
            "kubeletPluginsDirectoryPath": str(folder / "plugins"),
            "cdiRoot": str(folder / "cdi"),
        }
    }


_ANY_FOLDER = Path("/folder-of-a-test")


def render_in(folder: Path, values: JSON, minor: int) -> list[JSON]:
    """The objects of a rendering whose pods keep to a folder. Equal values are rendered once for all folders."""
    text = json.dumps(render(merged(values, paths(_ANY_FOLDER)), minor))
    found: list[JSON] = json.loads(text.replace(str(_ANY_FOLDER), str(folder)))
    return found


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short name: sockets are made in it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:
        yield Path(name)


@contextlib.contextmanager
def installed(objects: list[JSON], folder: Path) -> Iterator[Containers]:
    """Roles, bindings and accounts of a rendering on an API server of their own, with a node; nothing runs yet."""
    with (
        FaultyServer(ApiServerOptions(rbac=True, tls=False)) as server,
        connect(server.write_kubeconfig(folder / "admin")) as admin,
    ):
        spec = {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]}
        admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "spec": spec})
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        admin.create(NAMESPACES, namespace)
        for one in objects:
            if one["kind"] in _RBAC:
                admin.create(_RBAC[one["kind"]], one, one["metadata"].get("namespace", ""))
        kubeconfigs = {}
        for one in objects:
            if one["kind"] == "ServiceAccount":
                meta = one["metadata"]
                token = server.add_service_account(meta["namespace"], meta["name"], node=NODE)
                path = folder / f"kubeconfig-{meta['name']}"
                kubeconfigs[meta["name"]] = server.write_kubeconfig(path, token=token)
        containers = Containers(objects, admin, server.faults, kubeconfigs, folder)
        try:
            yield containers
        finally:
            containers.kill()
