# SPDX-License-Identifier: Apache-2.0
"""One node of the sandbox: simulated hardware, a kubelet in this process, and the driver's real processes.

A node's folder has `hardware` (the state of the simulated GPUs), `kubelet`, `cdi`, `logs`, and `shm` in place of the
node's /dev/shm. A new process finds the files of a killed one.
"""

import contextlib
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

from dra_driver.process.mps import end_processes

from ..domains.names import DRIVER
from ..errors import SandboxError
from ..gpu.inventory import Inventory, read_inventory
from ..gpu.labels import Labels, gpu_labels, read_machine
from ..gpu.policy import NodePolicy, load_policy
from ..gpu.simulated import NodeDescription, SimulatedNode
from ..names import DRIVER_NAME
from .child import Children
from .computedomains import NAMESPACE
from .kubelet import BackoffRange, Kubelet, KubeletOptions, KubernetesCluster, Periods
from .loop import connected
from .processes import STOP_SECONDS, Processes
from .programs import PodPrograms

PERIODS = Periods(
    pod_resync=2.0,
    unprepare_retry=2.0,
    claim_reconcile=2.0,
    program_restart=BackoffRange(0.5, 5.0),
    longest_probe=0.5,
)
"""Shorter periods than kubelet's, which are 10 s or a minute."""


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """What all nodes of a sandbox have in common."""

    kubeconfig: Path
    description: NodeDescription
    children: Children
    """Starts the processes."""
    policy: Path | None = None
    """The driver's policy file."""
    periods: Periods = PERIODS
    """Those of the kubelets."""


class SandboxNode(Processes):
    """The parts of one node."""

    kubelet: Kubelet

    def __init__(self, name: str, folder: Path, setup: NodeSetup, pod_network: IPv4Network | None = None) -> None:
        """With `pod_network`, the node has ComputeDomains: its pods have these addresses, and IMEX daemons run.

        Raises DescriptionError if the folder has other hardware, and OSError.
        """
        super().__init__(name, folder / "logs", setup.children)
        self.name = name
        self.kubeconfig = setup.kubeconfig
        self.cdi_root = folder / "cdi"
        self.kubelet_root = folder / "kubelet"
        self.shared_memory = folder / "shm"
        self._policy = setup.policy
        self._periods = setup.periods
        self._pod_network = pod_network
        self.drivers = (DRIVER_NAME, DRIVER) if pod_network else (DRIVER_NAME,)
        self.cdi_root.mkdir(parents=True, exist_ok=True)
        self.hardware = SimulatedNode.create(folder / "hardware", setup.description, name)

    @contextlib.contextmanager
    def kubelet_running(self, version: str) -> Iterator[None]:
        """Run the kubelet, of this version of Kubernetes, inside the context. The context starts when the Node is
        Ready.
        """
        # Without permission to create device nodes, the simulated devices are regular files.
        real = stat.S_ISCHR((self.hardware.driver_root / "dev/nvidiactl").stat().st_mode)
        folder, driver_root = self.kubelet_root / "pods", self.hardware.driver_root
        programs = PodPrograms(self.kubeconfig, folder, driver_root, self.logs, self.children)
        options = KubeletOptions(
            self.name,
            self.kubelet_root,
            self.cdi_root,
            version=version,
            labels=self._labels(),
            periods=self._periods,
            plain_files=not real,
            programs=programs if self._pod_network else None,
            pod_network=self._pod_network,
        )
        with connected(self.kubeconfig) as client:
            cluster = KubernetesCluster(client, node_name=self.name)
            with Kubelet(options, cluster) as self.kubelet:
                self.kubelet.wait_ready()
                yield

    @contextlib.contextmanager
    def driver_running(self) -> Iterator[None]:
        """Run the driver's processes inside the context. `wait_registered` waits for the plugin."""
        try:
            self.start_controller()
            self.start_mps()
            self.start_plugin()
            yield
        finally:
            self._stop_driver()

    def start_controller(self) -> None:
        """Start dra-controller."""
        plugins = str(self.kubelet_root / "plugins")
        self._start("controller", "controller.main", "--kubelet-plugins-directory-path", plugins)

    def start_plugin(self) -> None:
        """Start dra-kubeletplugin."""
        namespace = ("--namespace", NAMESPACE) if self._pod_network else ()
        self._start(
            "kubeletplugin",
            "kubeletplugin.main",
            *namespace,
            *("--cdi-root", str(self.cdi_root)),
            *("--kubelet-registrar-directory-path", str(self.kubelet_root / "plugins_registry")),
            *("--kubelet-plugins-directory-path", str(self.kubelet_root / "plugins")),
            *("--shared-memory-directory-path", str(self.shared_memory)),
        )

    def start_mps(self) -> None:
        """Start dra-mps. Its daemons have no mounts of their own: that needs root."""
        self.launch(
            "mps",
            "kubeletplugin.features.mps.main",
            *("--kubelet-plugins-directory-path", str(self.kubelet_root / "plugins")),
            *("--container-driver-root", str(self.hardware.driver_root)),
            *("--shared-memory-directory-path", str(self.shared_memory)),
            "--no-private-mounts",
        )

    def wait_registered(self) -> None:
        """Wait until kubelet has registered the plugin. Raises SandboxError if the plugin ends."""
        for driver in self.drivers:
            self.wait("kubeletplugin", partial(self.kubelet.plugins, driver))
            self.kubelet.wait_registered(driver)

    def wait(self, name: str, is_so: Callable[[], object]) -> None:
        """Wait until a process has done something. Raises SandboxError if the process ends."""
        process = self.processes[name]
        what = f"{name} of {self.name} to be at work"
        self.kubelet.wait(lambda: bool(is_so()) or process.poll() is not None, what=what)
        if process.poll() is not None:
            raise SandboxError(self.ending(name))

    def _stop_driver(self) -> None:
        self.stop()
        end_processes(self.kubelet_root / "plugins" / DRIVER_NAME, STOP_SECONDS)  # MPS daemons of a killed dra-mps

    # Files and hardware of the node

    def inventory(self) -> Inventory:
        """Return the inventory of the simulated hardware."""
        nvml = self.hardware.nvml()
        nvml.initialize()
        return read_inventory(nvml, self.hardware.driver_root / "sys")

    def _labels(self) -> Labels:
        """Return the labels that GPU Feature Discovery would give the node."""
        inventory = self.inventory()
        policy = load_policy(self._policy) if self._policy else NodePolicy()
        machine = read_machine(inventory.gpus, self.hardware.driver_root / "sys")
        return gpu_labels(inventory, frozenset(), policy, machine)

    def claim_specs(self) -> list[Path]:
        """Return the CDI specs of claims."""
        return sorted(self.cdi_root.glob("*-claim_*.json"))

    def records(self) -> list[Path]:
        """Return the plugin's records of claims."""
        return sorted((self.kubelet_root / "plugins" / DRIVER_NAME / "claims").glob("*"))

    def _start(self, name: str, module: str, *arguments: str) -> None:
        policy = ("--policy-file", str(self._policy)) if self._policy else ()
        domains = ("--compute-domains",) if self._pod_network else ()
        where = ("--node-name", self.name, "--kubeconfig", str(self.kubeconfig))
        self.launch(name, module, *where, "--simulated-root", str(self.hardware.root), *policy, *domains, *arguments)
