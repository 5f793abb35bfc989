# SPDX-License-Identifier: Apache-2.0
"""The kubelet plugin as a process of its own on a simulated node, and kubelet's side of its sockets."""

import contextlib
import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from dra_driver.gpu.simulated.faults import Fault
from dra_driver.kube.api import ApiClient
from dra_driver.kube.resource.codec import V1
from dra_driver.names import DRIVER_NAME
from kubeletplugin.containers.cdi import BASE_KIND, CLAIM_KIND, SpecDirectory
from kubeletplugin.kubelet.instance import socket_paths
from kubeletplugin.protocol import dra_v1_pb2, health_v1_pb2, registration_pb2

from .apiserver import CLAIMS
from .claims import config_of
from .listing import paths_in
from .nodes import TestNode, make_node, stored_instances
from .preloaded import run, start
from .waiting import wait_for

POOL = "node-a"
HARDWARE = "h100x8-mixed"  # GPUs 0 to 3 are whole, 4 to 7 in MIG mode
NOTHING: Mapping[str, list[str]] = {"instances": [], "specs": [], "records": []}

_READY = ("GPUs are ready", "kubeletplugin.serve: started")


class Plugin:
    """One node's plugin, started and ended any number of times; what it leaves on the node stays in between.

    `flags` go to every start. With `uid` it is an instance with sockets of its own.
    """

    def __init__(
        self, folder: Path, kubeconfig: Path, *flags: str, uid: str = "", hardware: TestNode | None = None
    ) -> None:
        self.folder = folder
        self.kubeconfig = kubeconfig
        self.flags = (*flags, *([f"--instance-uid={uid}"] if uid else []))
        self.uid = uid
        self.hardware = hardware or make_node(folder / "node", HARDWARE, POOL)
        self.node = self.hardware.node
        self.cdi = folder / "cdi"
        self.state = folder / "plugins" / DRIVER_NAME
        self.records = self.state / "claims"
        self.shared_memory = self.state / "shm"
        sockets = socket_paths(self.state, folder / "plugins_registry", uid)
        self.service, self.registration = sockets.service, sockets.registration
        self.process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._begun: list[Any] = []
        self._channels = contextlib.ExitStack()

    # The process

    def start(self, *until: str) -> "Plugin":
        """Start it and wait for log lines; by default until it is registered and claims can be prepared."""
        assert self.process is None
        self._starts += 1
        self.process = self.spawn()
        lines = until or _READY
        wait_for(lambda: all(line in self.log for line in lines) or self.ended, f"{lines} in the plugin's log")
        assert not self.ended, self.log
        return self

    def beside(self, uid: str) -> "Plugin":
        """Another instance on the same node, not started yet; the caller kills it."""
        return Plugin(self.folder, self.kubeconfig, *self.flags, uid=uid, hardware=self.hardware)

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        """One more process of this node, which the caller ends."""
        where = [f"--{name}={value}" for name, value in self.where.items()]
        command = [sys.executable, "-m", "kubeletplugin.main", f"--node-name={POOL}", *where, "-v4"]
        command += [f"--kubeconfig={self.kubeconfig}", *self.flags, *arguments]
        with self._log_file.open("ab") as log:
            return start(command, stdout=log, stderr=log)

    @property
    def where(self) -> dict[str, Path]:
        """The flags that say where things are."""
        return {
            "kubelet-registrar-directory-path": self.registration.parent,
            "kubelet-plugins-directory-path": self.state.parent,
            "cdi-root": self.cdi,
            "shared-memory-directory-path": self.shared_memory,
            "simulated-root": self.folder / "node",
        }

    def command(self, name: str, *arguments: str, within: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        """Run a subcommand about this node, as the last arguments of the command `within` if there is one."""
        where = [f"--{flag}={value}" for flag, value in self.where.items()]
        command = [sys.executable, "-m", "kubeletplugin.main", name, *where, *arguments]
        if not within:
            return run(command)
        return subprocess.run([*within, *command], capture_output=True, text=True, check=False, timeout=60)

    @property
    def _log_file(self) -> Path:
        return self.folder / f"log-{self.uid}-{self._starts}"

    @property
    def log(self) -> str:
        """What was logged since the last start."""
        return self._log_file.read_text(encoding="utf-8")

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        """End the process at once, wherever it is."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.hang_up()

    def terminate(self) -> int:
        """Ask the process to end; its exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(60)
        self.process = None
        return code

    # kubelet's calls

    def hang_up(self) -> None:
        """Close kubelet's connections. The next call makes a new one."""
        self._channels.close()
        self._begun.clear()

    def get_info(self) -> Any:
        """What kubelet asks first."""
        ask = self._method(self.registration, "pluginregistration.Registration/GetInfo", registration_pb2.PluginInfo)
        return ask(registration_pb2.InfoRequest(), timeout=30)

    def notify(self, registered: bool, error: str = "") -> None:
        """How kubelet tells whether it took the plugin."""
        method = "pluginregistration.Registration/NotifyRegistrationStatus"
        status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        self._method(self.registration, method, registration_pb2.RegistrationStatusResponse)(status, timeout=30)

    def prepare(self, *claims: Any, version: str = "v1") -> dict[str, Any]:
        """The answer for each claim, by UID."""
        return dict(self.call("Prepare", claims, version)(timeout=60).claims)

    def unprepare(self, *claims: Any, version: str = "v1") -> dict[str, str]:
        """The error for each claim, by UID; empty when it is unprepared."""
        answer = self.call("Unprepare", claims, version)(timeout=60)
        return {uid: one.error for uid, one in answer.claims.items()}

    def begin(self, verb: str, *claims: Any) -> Any:
        """Start a call and do not wait for it: a future, which is kept, since one that is dropped cancels the call."""
        self._begun.append(self.call(verb, claims, "v1", begin=True)())
        return self._begun[-1]

    def call(self, verb: str, claims: Sequence[Any], version: str, begin: bool = False) -> Callable[..., Any]:
        """`Node<verb>Resources` for these claims."""
        request = getattr(dra_v1_pb2, f"Node{verb}ResourcesRequest")(
            claims=[dra_v1_pb2.Claim(namespace=one.namespace, name=one.name, uid=one.uid) for one in claims]
        )
        path = f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/Node{verb}Resources"
        method = self._method(self.service, path, getattr(dra_v1_pb2, f"Node{verb}ResourcesResponse"))
        return lambda **options: (method.future if begin else method)(request, **options)

    def watch_health(self, version: str = "v1") -> Any:
        """The messages of a new health stream."""
        method = self._channel(self.service).unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=health_v1_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
        )
        return method(health_v1_pb2.NodeWatchResourcesRequest(), timeout=60)

    def _channel(self, socket: Path) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        return self._channels.enter_context(grpc.insecure_channel(f"unix:{socket}", options))

    def _method(self, socket: Path, path: str, answer: Any) -> Any:
        return self._channel(socket).unary_unary(
            f"/{path}", request_serializer=lambda one: one.SerializeToString(), response_deserializer=answer.FromString
        )

    # The node

    def hold(self, call: str, before: int = 0, gpu: int | None = None) -> None:
        """The next call of this NVML function (for a GPU), after so many that pass, never returns."""
        if before:
            self.node.inject(Fault(call, gpu, times=before))
        self.node.inject(Fault(call, gpu, seconds=1000.0, times=1))

    def wait_held(self) -> None:
        """Wait until a call is in `hold`."""
        system = self.folder / "node" / "state" / "system.json"
        wait_for(lambda: not json.loads(system.read_bytes())["faults"], "the call that is held")

    def instances(self) -> list[str]:
        """The GPU instances of all GPUs, as `gpu/start:size`; those without a compute instance in brackets."""
        found = stored_instances(self.node)
        return sorted(f"{gpu}/{place}" if devices else f"({gpu}/{place})" for gpu, place, devices in found)

    def left(self) -> dict[str, list[str]]:
        """Everything that claims have on the node, with whatever was left half written."""
        specs = [path.name for path in paths_in(self.cdi)]
        common = SpecDirectory(self.cdi, BASE_KIND).file().name
        return {
            "instances": self.instances(),
            "specs": [name for name in specs if name != common],
            "records": [path.name for path in paths_in(self.records)],
        }

    def spec_devices(self, uid: str) -> dict[str, list[str]]:
        """Device nodes by CDI device name of a claim's spec."""
        spec = json.loads(SpecDirectory(self.cdi, CLAIM_KIND).file(uid).read_bytes())
        return {
            f"{spec['kind']}={one['name']}": [node["path"] for node in one["containerEdits"].get("deviceNodes", ())]
            for one in spec["devices"]
        }


@contextlib.contextmanager
def plugin_on(kubeconfig: Path, *flags: str, uid: str = "") -> Iterator[Plugin]:
    """A node whose plugin is not started yet; whatever runs at the end is killed."""
    with tempfile.TemporaryDirectory(prefix="dra-") as name:  # short: sockets are in it
        plugin = Plugin(Path(name), kubeconfig, *flags, uid=uid)
        try:
            yield plugin
        finally:
            plugin.kill()


def stored_claim(
    client: ApiClient,
    *devices: str,
    allocated: bool = True,
    pool: str = POOL,
    node: str = "",
    sharing: Any = None,
    **result: Any,
) -> Any:
    """A claim that is in the API server, with one request for each device, as kubelet would name it. With `node` it was
    allocated there and can be used nowhere else; `sharing` as for `allocated_claim`.
    """
    requests = [
        {"name": f"r{index}", "exactly": {"deviceClassName": DRIVER_NAME}} for index in range(max(len(devices), 1))
    ]
    meta = {"name": f"claim-{uuid.uuid4().hex[:12]}"}
    value = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaim",
        "metadata": meta,
        "spec": {"devices": {"requests": requests}},
    }
    stored = client.create(CLAIMS, value, "default")
    if allocated:
        results = [
            {"request": f"r{index}", "driver": DRIVER_NAME, "pool": pool, "device": device, **result}
            for index, device in enumerate(devices)
        ]
        stored["status"] = {"allocation": {"devices": {"results": results, "config": config_of(sharing, devices)}}}
        if node:
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            stored["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": [term]}
        client.update(CLAIMS, stored, subresource="status")
    return dra_v1_pb2.Claim(namespace="default", name=meta["name"], uid=stored["metadata"]["uid"])
