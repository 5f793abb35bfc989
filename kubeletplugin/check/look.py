# SPDX-License-Identifier: Apache-2.0
"""Looking at one node: all checks in the order in which a person would mend things."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_driver import __version__
from dra_driver.cdi import DriverRoot, Root

from ..kubelet.instance import SocketPaths
from ..options import Node
from .asking import ask_cluster
from .cluster import NodeFacts, cluster_findings
from .driver import NamedHook, driver_findings, read_driver
from .dropin import DropIn
from .finding import Finding, any_failed, passed
from .folders import folder_findings, read_folders
from .foreign import foreign_findings, read_foreign
from .gpus import gpu_findings, read_gpus
from .host import Host
from .kubelet import kubelet_findings, read_kubelet
from .runtime import drop_in, read_runtime, runtime_findings
from .versions import version_findings


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

    findings: tuple[Finding, ...]
    drop_in: DropIn | None


def look_at_hardware(place: Place) -> tuple[Finding, ...]:
    """The driver and the GPUs only."""
    driver = read_driver(place.node.hardware, _named_hook(place))
    gpus = read_gpus(place.node.hardware, _device_root(place))
    return (*driver_findings(driver), *gpu_findings(gpus))


def look(place: Place) -> Look:
    """Everything."""
    node, host = place.node, place.host
    cluster = ask_cluster(place.kubeconfig, place.node_name, place.in_pod)
    reported = cluster.node or NodeFacts()
    runtime = read_runtime(
        host, reported.runtime, str(node.cdi_root), visible=place.host_is_visible, config=place.runtime_config
    )
    kubelet = read_kubelet(
        host,
        str(node.folder.parent.parent / "config.yaml"),
        place.node_name,
        reported.arguments,
        visible=place.host_is_visible,
    )
    sockets = (place.sockets.registration, place.sockets.service)
    findings = (
        *look_at_hardware(place),
        *folder_findings(read_folders(host, node.registry, node.folder, node.cdi_root, sockets, kubelet.root)),
        *foreign_findings(read_foreign(host, node.cdi_root)),
        *runtime_findings(runtime),
        *kubelet_findings(kubelet, reported.kubelet, place.node_name),
        *cluster_findings(cluster, place.node_name),
        *version_findings(reported.kubelet, reported.runtime),
        passed("this program", f"dra-driver-gpu {__version__}, Python {platform.python_version()}"),
    )
    return Look(findings, drop_in(runtime))


def wait_for_hardware(
    look_again: Callable[[], Sequence[Finding]], say: Callable[[Finding], None], pause: Callable[[], None]
) -> None:
    """Look until driver and GPUs have no failure, and say what changed each time."""
    said: set[Finding] = set()
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
