# SPDX-License-Identifier: Apache-2.0
"""The programs that run in pods of the sandbox: dra-imex-daemon, as a process of this machine.

A container has its own files, network and API token. Here, flags name the files on the host, the endpoint and IMEX use
the address of the pod, and a kubeconfig has a token of the pod's service account, bound to the pod. All processes of a
container have a variable of their environment, by which they are found when the container ends.
"""

import os
import select
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import yaml

from ..domains.names import IMEX_FOLDER
from ..kube.api import ApiError, ConnectionConfigError
from ..kube.kinds import SERVICE_ACCOUNTS
from .apiserver.server import write_kubeconfig
from .child import Children
from .kubelet import Launch
from .kubelet.model import Container, KubeletPod
from .loop import connected
from .marked import MARK, marked_processes

MODULES: Final = {"dra-imex-daemon": "dra_driver.domains.daemon.main"}
"""The programs, and the modules that have them."""
_SIMULATED: Final = "DRA_SIMULATED_"
"""Programs of the simulated NVIDIA driver have variables with this prefix, which they also get from this process."""
_ENDPOINT: Final = "HTTP_ENDPOINT"
_TOKEN_SECONDS: Final = 86400


class PodPrograms:
    """Starts the programs of one node's pods. Their files are in `folder`, a folder for each pod."""

    def __init__(self, kubeconfig: Path, folder: Path, driver_root: Path, logs: Path, children: Children) -> None:
        """`kubeconfig` is the administrator's. Files that a killed sandbox left in `folder` are removed."""
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._driver_root = driver_root
        self._logs = logs
        self._children = children
        shutil.rmtree(folder, ignore_errors=True)

    def runs(self, container: Container) -> bool:
        """Return whether the container's command is one of `MODULES`."""
        return container.command[:1] != () and container.command[0] in MODULES

    def start(self, launch: Launch) -> "_Process":
        """Start the program of a container. Raises OSError."""
        pod, folder = launch.pod, self._folder / launch.pod.uid / launch.container.name
        folder.mkdir(parents=True, exist_ok=True)
        hosts = folder / "hosts"
        if not hosts.exists():
            hosts.write_text(f"127.0.0.1\tlocalhost\n{launch.address}\t{pod.name}\n", encoding="utf-8")
        name, *arguments = launch.arguments()
        targets = {mount.container_path: mount.host_path for mount in launch.mounts}
        programs = self._driver_root / "usr/bin"
        files = {
            **({"--folder": targets[IMEX_FOLDER]} if IMEX_FOLDER in targets else {}),
            "--hosts-file": str(hosts),
            "--imex-program": str(programs / "nvidia-imex"),
            "--imex-control-program": str(programs / "nvidia-imex-ctl"),
        }
        flags = (text for flag in files.items() for text in flag)
        environment = {
            **launch.env,
            **{key: value for key, value in os.environ.items() if key.startswith(_SIMULATED)},
            f"{_SIMULATED}HOSTS_FILE": str(hosts),
            f"{_SIMULATED}ADDRESS": launch.address,
            "KUBECONFIG": str(self._write_kubeconfig(pod, folder / "kubeconfig")),
            MARK: str(folder),
        }
        if launch.env.get(_ENDPOINT, "").startswith(":"):  # all addresses, of which the pod has one
            environment[_ENDPOINT] = launch.address + launch.env[_ENDPOINT]
        log = self._logs / f"{pod.name}.log"
        return _Process(self._children.start(MODULES[name], (*arguments, *flags), log, environment), folder)

    def clean_up(self, uid: str) -> None:
        """See `Programs.clean_up`."""
        shutil.rmtree(self._folder / uid, ignore_errors=True)

    def _write_kubeconfig(self, pod: KubeletPod, path: Path) -> Path:
        """Write a kubeconfig with a token of the pod's service account. Raises OSError."""
        account = pod.raw["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {},
            "spec": {"audiences": [], "expirationSeconds": _TOKEN_SECONDS, "boundObjectRef": bound},
        }
        try:
            with connected(self._kubeconfig) as client:
                answer = client.create(SERVICE_ACCOUNTS, request, pod.namespace, name=account, subresource="token")
        except (ApiError, ConnectionConfigError) as error:
            raise OSError(f"no token of service account {pod.namespace}/{account}: {error}") from error
        document = yaml.load(self._kubeconfig.read_text(encoding="utf-8"), yaml.CSafeLoader)
        document["users"][0]["user"] = {"token": answer["status"]["token"]}
        return write_kubeconfig(path, document)


class _Process:
    """A program that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", mark: Path) -> None:
        self._process = process
        self._mark = mark
        self._end = os.pidfd_open(process.pid)
        self._lock = threading.Lock()

    def wait(self, seconds: float) -> int | None:
        """See `Program.wait`. The exit code is that of a shell."""
        waiting = select.poll()
        waiting.register(self._end, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            return None
        with self._lock:
            code = self._process.wait()
            os.close(self._end)
            if self._process.stdin is not None:
                self._process.stdin.close()
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        """See `Program.terminate`."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """See `Program.kill`."""
        self._signal(signal.SIGKILL)
        while left := marked_processes(self._mark):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock, suppress(ProcessLookupError):
            if self._process.returncode is None:
                signal.pidfd_send_signal(self._end, number)
