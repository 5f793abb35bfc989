# SPDX-License-Identifier: Apache-2.0
"""One node of the sandbox: simulated hardware, a kubelet in this process, and the driver's real processes.

A node's folder has `hardware` (the state of the simulated GPUs), `kubelet`, `cdi`, `logs`, and `shm` in place of the
node's /dev/shm. A new process finds the files of a killed one.
"""

import contextlib
import logging
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .. import DRIVER_NAME
from ..errors import DriverError
from ..gpu.inventory import Inventory, read_inventory
from ..gpu.simulation import NodeDescription, SimulatedNode
from ..mps.processes import end_processes
from .kubelet import Kubelet, KubernetesCluster, Options, Periods, stat_device, stat_stand_in

log = logging.getLogger(__name__)

_STOP_SECONDS = 10.0
_PERIODS = Periods(pod_resync=2.0, unprepare_retry=2.0, claim_reconcile=2.0)
"""Shorter periods than kubelet's, which are 10 s or a minute."""


class SandboxError(DriverError):
    """A part of the sandbox did not start."""


class SandboxNode:
    """The parts of one node."""

    kubelet: Kubelet

    def __init__(
        self, name: str, folder: Path, kubeconfig: Path, description: NodeDescription, *, policy: Path | None, lock: int
    ) -> None:
        """`policy` is the driver's policy file. The processes inherit the descriptor `lock`.

        Raises DescriptionError if the folder has other hardware, and OSError.
        """
        self.name = name
        self.kubeconfig = kubeconfig
        self.cdi_root = folder / "cdi"
        self.kubelet_root = folder / "kubelet"
        self.logs = folder / "logs"
        self.shared_memory = folder / "shm"
        self._policy = policy
        self._lock = lock
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for each in (self.logs, self.cdi_root):
            each.mkdir(parents=True, exist_ok=True)
        self.hardware = SimulatedNode.create(folder / "hardware", description, name)

    @contextlib.contextmanager
    def kubelet_running(self) -> Iterator[None]:
        """Run the kubelet inside the context. The context starts when the Node is Ready."""
        # Without permission to create device nodes, the simulated devices are regular files.
        real = stat.S_ISCHR((self.hardware.driver_root / "dev/nvidiactl").stat().st_mode)
        options = Options(
            self.name,
            self.kubelet_root,
            cdi_dirs=(self.cdi_root,),
            periods=_PERIODS,
            device_stat=stat_device if real else stat_stand_in,
        )
        with Kubelet(options, KubernetesCluster(self.kubeconfig, node_name=self.name)) as self.kubelet:
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
        self._start(
            "kubeletplugin",
            "kubeletplugin.main",
            *("--cdi-root", str(self.cdi_root)),
            *("--kubelet-registrar-directory-path", str(self.kubelet_root / "plugins_registry")),
            *("--kubelet-plugins-directory-path", str(self.kubelet_root / "plugins")),
            *("--shared-memory-directory-path", str(self.shared_memory)),
        )

    def start_mps(self) -> None:
        """Start dra-mps. Its daemons have no mounts of their own: that needs root."""
        self._launch(
            "mps",
            "dra_driver.mps.main",
            *("--kubelet-plugins-directory-path", str(self.kubelet_root / "plugins")),
            *("--container-driver-root", str(self.hardware.driver_root)),
            *("--shared-memory-directory-path", str(self.shared_memory)),
            "--no-private-mounts",
        )

    def wait_registered(self) -> None:
        """Wait until kubelet has registered the plugin. Raises SandboxError if the plugin ends."""
        self.wait("kubeletplugin", lambda: bool(self.kubelet.plugins(DRIVER_NAME)))
        self.kubelet.wait_registered(DRIVER_NAME)

    def wait(self, name: str, is_so: Callable[[], object]) -> None:
        """Wait until a process has done something. Raises SandboxError if the process ends."""
        process = self._processes[name]
        what = f"{name} of {self.name} to be at work"
        self.kubelet.wait(lambda: bool(is_so()) or process.poll() is not None, what=what)
        if process.poll() is not None:
            raise SandboxError(self.ending(name))

    def _stop_driver(self) -> None:
        for name in list(self._processes):
            try:
                self.terminate(name)
            except subprocess.TimeoutExpired:
                log.warning("%s of %s did not end within %g s and is killed", name, self.name, _STOP_SECONDS)
                self.kill(name)
        end_processes(self.kubelet_root / "plugins" / DRIVER_NAME, _STOP_SECONDS)  # MPS daemons of a killed dra-mps

    # The processes: `controller`, `mps` and `kubeletplugin`

    def processes(self) -> tuple[str, ...]:
        """Return the names of the running processes: `controller`, `mps` and `kubeletplugin`."""
        return tuple(self._processes)

    def pid(self, name: str) -> int:
        """Return the id of a process."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self._processes[name].kill()
        self._reap(name, None)

    def terminate(self, name: str) -> int:
        """End a process with SIGTERM and return its exit code. Raises TimeoutExpired."""
        with contextlib.suppress(ProcessLookupError):
            self._processes[name].send_signal(signal.SIGTERM)
        return self._reap(name, _STOP_SECONDS)

    def log(self, name: str) -> str:
        """Return the log of a process, over all of its starts."""
        return (self.logs / f"{name}.log").read_text(encoding="utf-8")

    def ending(self, name: str) -> str:
        """Return how a process ended, and where its log is."""
        process = self._processes[name]
        code = process.wait()
        if code < 0:
            how = f"was ended by signal {-code} ({signal.strsignal(-code)})"
        else:
            last = self.log(name).strip().rpartition("\n")[2]
            how = f"ended with code {code}: {last}"
        return f"{name} of {self.name} (process {process.pid}) {how}; its log is {self.logs / name}.log"

    # Files and hardware of the node

    def inventory(self) -> Inventory:
        """Return the inventory of the simulated hardware."""
        nvml = self.hardware.nvml()
        nvml.initialize()
        return read_inventory(nvml, self.hardware.driver_root / "sys")

    def claim_specs(self) -> list[Path]:
        """Return the CDI specs of claims."""
        return sorted(self.cdi_root.glob("*-claim_*.json"))

    def records(self) -> list[Path]:
        """Return the plugin's records of claims."""
        return sorted((self.kubelet_root / "plugins" / DRIVER_NAME / "claims").glob("*"))

    def _start(self, name: str, module: str, *arguments: str) -> None:
        policy = ("--policy-file", str(self._policy)) if self._policy else ()
        where = ("--node-name", self.name, "--kubeconfig", str(self.kubeconfig))
        self._launch(name, module, *where, "--simulated-root", str(self.hardware.root), *policy, *arguments)

    def _launch(self, name: str, module: str, *arguments: str) -> None:
        command: Sequence[str] = (sys.executable, "-m", "dra_driver.sandbox.child", module, *arguments)
        with (self.logs / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(self._lock,)
            )

    def _reap(self, name: str, seconds: float | None) -> int:
        """Wait for a process to end and return its exit code. Raises TimeoutExpired."""
        process = self._processes[name]
        code = process.wait(seconds)
        if process.stdin is not None:
            process.stdin.close()
        del self._processes[name]
        return code
