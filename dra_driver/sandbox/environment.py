# SPDX-License-Identifier: Apache-2.0
"""A node on a laptop: API server, kubelet and scheduler in this process, controller and plugin as real processes.

with Sandbox(Path("/tmp/sandbox"), "h100x8-mixed") as sandbox:
    sandbox.apply("examples/mig-slices.yaml")
    sandbox.kubelet.wait_pod_running("default", "mig-slices")
"""

import contextlib
import logging
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from .. import DRIVER_NAME, __version__
from ..allocation import Features
from ..cel import COST_LIMIT, CompileError, compile_selector
from ..cel import Environment as CelEnvironment
from ..cluster import ApiClient, Connection, load_credentials
from ..gpu.inventory import Inventory, read_inventory
from ..gpu.simulation import SimulatedNode, load_description
from ..resource.codec import V1
from .apiserver import ApiServer, ApiServerOptions, RunningServer
from .claimcontroller import ClaimController
from .folder import held
from .kubelet import Kubelet, KubernetesCluster, Options, Periods, stat_device, stat_stand_in
from .loop import ControlLoop
from .pods import CLAIMS, CLASSES, PODS, SLICES, TEMPLATES
from .scheduler import Scheduler

log = logging.getLogger(__name__)

JSON = dict[str, Any]

NODE = "node-1"
"""The sandbox's only node."""

DEVICE_TYPES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
"""The DeviceClasses that the chart installs, by name: the `type` of their devices."""

_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_PERIODS = Periods(pod_resync=2.0, unprepare_retry=2.0, claim_reconcile=2.0)
"""Kubelet waits 10 s or a minute until it tries again what failed."""


class SandboxError(Exception):
    """A part of the sandbox does not start."""


class Sandbox:
    """Everything runs from `start` (or entering) to `stop`, and keeps its files in `folder`.

    `simulated` names or describes the node's hardware. What a killed process leaves is still there when it is
    started again.
    """

    def __init__(self, folder: Path, simulated: str, *, kubernetes_minor: int = 36, port: int = 0) -> None:
        self.folder = folder.absolute()
        self.kubeconfig = self.folder / "kubeconfig"
        self.cdi_root = self.folder / "cdi"
        self.kubelet_root = self.folder / "kubelet"
        self.logs = self.folder / "logs"
        self._description = load_description(simulated)
        release = f"1.{kubernetes_minor}"
        options = ApiServerOptions(
            minor=kubernetes_minor, port=port, check_cel=lambda text: _selector_problem(text, release)
        )
        self._api_server = ApiServer(options)
        self._features = Features.from_gates({}, release=release)
        self._extended_resources = options.release().enabled("DRAExtendedResource")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._running = contextlib.ExitStack()

    def __enter__(self) -> "Sandbox":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything; returns once the plugin is registered and the node's devices are published.

        Raises SandboxError, DescriptionError (the folder holds other hardware) or OSError (another sandbox has it).
        """
        for folder in (self.folder, self.logs, self.cdi_root):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._running.enter_context(held(self.folder))
        self.node = SimulatedNode.create(self.folder / "node", self._description, NODE)
        self.server: RunningServer = self._running.enter_context(self._api_server)
        self.server.write_kubeconfig(self.kubeconfig)
        connection = self._running.enter_context(
            Connection(load_credentials(str(self.kubeconfig)), f"dra-sandbox/{__version__}")
        )
        self.client = ApiClient(connection)
        for name, kind in DEVICE_TYPES.items():
            self.client.create(CLASSES, _device_class(name, kind))
        self.kubelet = Kubelet(self._kubelet_options(), KubernetesCluster(self.kubeconfig, node_name=NODE))
        self._running.enter_context(self.kubelet)
        self.kubelet.wait_ready()
        scheduler = Scheduler(self.client, self._features, extended_resources=self._extended_resources)
        loop = ControlLoop(self.client, [ClaimController(self.client), scheduler])
        loop.start()
        self._running.callback(loop.stop)
        self._running.callback(self._stop_processes)
        self.start_controller()
        self.start_plugin()
        self._wait("controller", lambda: bool(self.slices()))

    def wait(self) -> str:
        """Wait until a process ends by itself; gives which one, how, and where its log is."""
        with contextlib.ExitStack() as opened:
            ends: dict[int, str] = {}
            for name in self._processes:
                descriptor = os.pidfd_open(self.pid(name))
                opened.callback(os.close, descriptor)
                ends[descriptor] = name
            ended: list[int] = []
            while not ended:  # Python handles signals here, and a thread that waits without end may not hear of them
                ended = select.select(list(ends), [], [], _LOOK_SECONDS)[0]
        return self._ending(ends[ended[0]])

    def stop(self) -> None:
        """Stop everything. The files stay."""
        self._running.close()

    # The real processes

    def start_controller(self) -> None:
        """Start dra-controller."""
        self._start(
            "controller", "controller.main", "--kubelet-plugins-directory-path", str(self.kubelet_root / "plugins")
        )

    def start_plugin(self) -> None:
        """Start dra-kubeletplugin and wait until kubelet has registered it."""
        self._start(
            "kubeletplugin",
            "kubeletplugin.main",
            "--cdi-root",
            str(self.cdi_root),
            "--kubelet-registrar-directory-path",
            str(self.kubelet_root / "plugins_registry"),
            "--kubelet-plugins-directory-path",
            str(self.kubelet_root / "plugins"),
        )
        self._wait("kubeletplugin", lambda: bool(self.kubelet.plugins(DRIVER_NAME)))
        self.kubelet.wait_registered(DRIVER_NAME)

    def pid(self, name: str) -> int:
        """The process id of `controller` or `kubeletplugin`."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """End a process with SIGKILL, in the middle of whatever it does."""
        self._processes[name].kill()
        self._reap(name, None)

    def terminate(self, name: str) -> int:
        """End a process with SIGTERM; gives its exit code. TimeoutExpired when it runs on."""
        self._processes[name].send_signal(signal.SIGTERM)
        return self._reap(name, _STOP_SECONDS)

    def log(self, name: str) -> str:
        """What a process has logged, over all of its starts."""
        return (self.logs / f"{name}.log").read_text(encoding="utf-8")

    # The API server

    def apply(self, path: Path | str) -> list[JSON]:
        """Create the objects of a manifest in namespace default; gives them as stored."""
        return [self._create(value) for value in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if value]

    def slices(self) -> list[JSON]:
        """The driver's ResourceSlices."""
        return self.client.list(SLICES, field_selector=f"spec.driver={DRIVER_NAME}").items

    def claims(self) -> list[JSON]:
        """All ResourceClaims."""
        return self.client.list(CLAIMS).items

    def pods(self) -> list[JSON]:
        """All Pods."""
        return self.client.list(PODS).items

    def clear(self) -> None:
        """Delete all pods and templates, and wait until the pods and their claims are gone."""
        for template in self.client.list(TEMPLATES).items:
            self.client.delete(TEMPLATES, template["metadata"]["name"], template["metadata"]["namespace"])
        for pod in self.pods():
            self.client.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        self.kubelet.wait(lambda: not self.pods() and not self.claims(), what="pods and claims to be gone")

    # The node

    def inventory(self) -> Inventory:
        """What the hardware holds."""
        nvml = self.node.nvml()
        nvml.initialize()
        return read_inventory(nvml, self.node.driver_root / "sys")

    def claim_specs(self) -> list[Path]:
        """The CDI specs of claims."""
        return sorted(self.cdi_root.glob("*-claim_*.json"))

    def records(self) -> list[Path]:
        """What the plugin remembers of claims."""
        return sorted((self.kubelet_root / "plugins" / DRIVER_NAME / "claims").glob("*"))

    def _kubelet_options(self) -> Options:
        # Without the right to make device nodes, the simulated ones are plain files.
        real = stat.S_ISCHR((self.node.driver_root / "dev/nvidiactl").stat().st_mode)
        return Options(
            NODE,
            self.kubelet_root,
            cdi_dirs=(self.cdi_root,),
            periods=_PERIODS,
            device_stat=stat_device if real else stat_stand_in,
        )

    def _start(self, name: str, module: str, *arguments: str) -> None:
        command: Sequence[str] = (
            *(sys.executable, "-m", "dra_driver.sandbox.child", module),
            *("--node-name", NODE, "--kubeconfig", str(self.kubeconfig)),
            *("--simulated-root", str(self.node.root), *arguments),
        )
        with (self.logs / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(self._lock,)
            )

    def _wait(self, name: str, is_so: Callable[[], bool]) -> None:
        """Wait for what a process does. Raises SandboxError when it ends instead."""
        process = self._processes[name]
        self.kubelet.wait(lambda: is_so() or process.poll() is not None, what=f"{name} to be at work")
        if process.poll() is not None:
            raise SandboxError(self._ending(name))

    def _ending(self, name: str) -> str:
        """How a process has ended."""
        process = self._processes[name]
        code = process.wait()
        if code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            last = self.log(name).strip().rpartition("\n")[2]
            how = f"ended with code {code}: {last}"
        return f"{name} (process {process.pid}) {how}; its log is {self.logs / name}.log"

    def _reap(self, name: str, seconds: float | None) -> int:
        """The exit code of a process that ends. Raises TimeoutExpired."""
        process = self._processes[name]
        code = process.wait(seconds)
        if process.stdin is not None:
            process.stdin.close()
        del self._processes[name]
        return code

    def _stop_processes(self) -> None:
        for name in list(self._processes):
            try:
                self.terminate(name)
            except subprocess.TimeoutExpired:
                log.warning("%s did not end within %g s and is killed", name, _STOP_SECONDS)
                self.kill(name)

    def _create(self, value: JSON) -> JSON:
        kinds = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES, "Pod": PODS}
        return self.client.create(kinds[value["kind"]], value, value["metadata"].get("namespace", "default"))


def _selector_problem(expression: str, release: str) -> str | None:
    """Why kube-apiserver refuses a new selector."""
    try:
        cost = compile_selector(expression, CelEnvironment(release, stored=False)).max_cost
    except CompileError as error:
        return str(error)
    return "too complex, exceeds cost limit" if cost > COST_LIMIT else None


def _device_class(name: str, kind: str) -> JSON:
    expression = f"device.driver == '{DRIVER_NAME}' && device.attributes['{DRIVER_NAME}'].type == '{kind}'"
    return {
        "apiVersion": V1.api_version,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
