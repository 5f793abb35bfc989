# SPDX-License-Identifier: Apache-2.0
"""Runs all checks of one node, in the order in which an administrator would correct the problems.

A check that fails unexpectedly becomes a finding, and the other checks run.
"""

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dra_driver import __version__
from dra_driver.cdi import DriverRoot, Root
from dra_driver.containment import contained

from ..kubelet.instance import SocketPaths
from ..options import Node
from .cluster import NodeFacts, ask_cluster, cluster_findings, version_findings
from .driver import NamedHook, driver_findings, read_driver
from .dropin import DropIn
from .finding import CheckResult, any_failed, passed, warned
from .folders import folder_findings, foreign_findings, read_folders, read_foreign
from .gpus import gpu_findings, read_gpus
from .host import Host
from .kubelet import kubelet_findings, read_kubelet
from .runtime import drop_in, read_runtime, runtime_findings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """What flags say: the plugin's own view of the node, and how this process sees the rest of it.

    `host_is_visible` is false in a container without the host's /.
    """

    node_name: str
    node: Node
    sockets: SocketPaths
    host: Host
    hook: str | None = None
    kubeconfig: str | None = None
    runtime_config: str | None = None
    host_is_visible: bool = True
    in_pod: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What was found, and the file that --fix would write."""

    findings: tuple[CheckResult, ...]
    drop_in: DropIn | None


class _Checks:
    """The findings of checks that were made one after the other."""

    def __init__(self) -> None:
        self.findings: list[CheckResult] = []

    def read(self, check: str, facts: Callable[[], T]) -> T | None:
        """What `facts` gives; None, and a finding, when it fails unexpectedly."""

        def failed(error: Exception) -> None:
            text = f"this check failed unexpectedly, so nothing is known: {error!r}"
            self.findings.append(warned(check, text, "report it with the text on standard error"))

        with contained("check", check, lambda _: None, failed):
            return facts()
        return None

    def add(self, check: str, findings: Callable[[], Iterable[CheckResult]]) -> None:
        """Make a check."""
        self.findings += self.read(check, lambda: tuple(findings())) or ()


def look_at_hardware(place: Place) -> tuple[CheckResult, ...]:
    """The driver and the GPUs only."""
    hardware, checks = place.node.hardware, _Checks()
    checks.add("NVIDIA driver", lambda: driver_findings(read_driver(hardware, _named_hook(place))))
    checks.add("GPUs", lambda: gpu_findings(read_gpus(hardware, _device_root(place))))
    return tuple(checks.findings)


def look(place: Place) -> Look:
    """Everything."""
    node, host, name = place.node, place.host, place.node_name
    checks = _Checks()
    checks.findings += look_at_hardware(place)
    cluster = checks.read("cluster", lambda: ask_cluster(place.kubeconfig, name, place.in_pod))
    reported = (cluster.node if cluster is not None else None) or NodeFacts()
    runtime = checks.read(
        "container runtime",
        lambda: read_runtime(
            host, reported.runtime, str(node.cdi_root), visible=place.host_is_visible, config=place.runtime_config
        ),
    )
    config = str(node.folder.parent.parent / "config.yaml")
    kubelet = checks.read(
        "kubelet", lambda: read_kubelet(host, config, name, reported.arguments, visible=place.host_is_visible)
    )
    sockets = (place.sockets.registration, place.sockets.service)
    root = kubelet.root if kubelet is not None else ""
    checks.add(
        "folders", lambda: folder_findings(read_folders(host, node.registry, node.folder, node.cdi_root, sockets, root))
    )
    checks.add("other drivers", lambda: foreign_findings(read_foreign(host, node.cdi_root)))
    if runtime is not None:
        checks.add("container runtime", lambda: runtime_findings(runtime))
    if kubelet is not None:
        checks.add("kubelet", lambda: kubelet_findings(kubelet, reported.kubelet, name))
    if cluster is not None:
        checks.add("cluster", lambda: cluster_findings(cluster, name))
    checks.add("versions", lambda: version_findings(reported.kubelet, reported.runtime))
    mend = None if runtime is None else checks.read("container runtime", lambda: drop_in(runtime))
    checks.findings.append(passed("this program", f"dra-driver-gpu {__version__}, Python {platform.python_version()}"))
    return Look(tuple(checks.findings), mend)


def wait_for_hardware(
    look_again: Callable[[], Sequence[CheckResult]], say: Callable[[CheckResult], None], pause: Callable[[], None]
) -> None:
    """Look until driver and GPUs have no failure, and say what changed each time."""
    said: set[CheckResult] = set()
    while True:
        findings = look_again()
        for finding in findings:
            if finding not in said:
                say(finding)
        said = set(findings)
        if not any_failed(findings):
            return
        pause()


def _named_hook(place: Place) -> NamedHook | None:
    if place.hook is None:
        return None
    return NamedHook(place.hook, place.host.exists(place.hook) if place.host_is_visible else None)


def _device_root(place: Place) -> DriverRoot:
    """Where device nodes are looked for: in the driver's own tree when it has them, else on the host."""
    hardware = place.node.hardware
    if (hardware.driver_root / "dev/nvidiactl").exists():
        dev = hardware.driver_root  # a driver container made them there, maybe since this process started
    else:
        dev = hardware.dev_root if place.host.is_own else place.host.here("/")
    return DriverRoot(Root(hardware.driver_root), Root(dev), hardware.proc_root, hardware.sys_root)
