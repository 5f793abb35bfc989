# SPDX-License-Identifier: Apache-2.0
"""The `check` command of dra-kubeletplugin, for people and as an init container."""

import functools
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from dra_driver import __version__
from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.options import PolicyOptions, policy_options
from dra_driver.gpu.policy import NodePolicy
from dra_driver.process.boot import boot_id
from dra_driver.process.command import (
    UserError,
    flag,
    kubeconfig_option,
    logging_options,
    output_option,
    version_option,
)
from kubeletplugin.containers.cdi import DriverRoot, Root

from ..checkfacts import CheckFacts
from ..claims.records import read_records
from ..drivers import CHECKS, gpu_driver
from ..errors import FixError
from ..features.domain.check import domain_findings
from ..finding import CheckResult, NodeCheck, any_failed, document, line, text
from ..host.programs import HostPrograms
from ..kubelet.instance import SocketPaths, socket_paths
from ..node.folders import NodeFolders
from ..node.node import Node
from ..options import DomainOptions, domain_options, hook_option, node_options
from .cdi import cdi_findings, fix_runtime
from .checks import CheckRun
from .cluster import NodeVersions, ask_cluster, cluster_findings, version_findings
from .driver import NamedHook, driver_findings, gpu_findings, read_driver, read_gpus
from .folders import folder_findings, foreign_findings
from .host import Host
from .kubelet import KubeletFacts, kubelet_findings, read_kubelet
from .runtime import RuntimeAccess, RuntimeFacts, read_runtime, socket_of
from .sharing import setting_findings, share_findings

_HOST_ROOT = "/host-root"
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True)
class CheckFlags:
    """The flags: the plugin's view of the node, and how this process sees the rest of it.

    `host_is_visible` is false in a container without the host's /.
    """

    node_name: str
    node: NodeFolders
    sockets: SocketPaths
    host: Host
    hook: str | None = None
    kubeconfig: str | None = None
    runtime_endpoint: str = ""
    runtime_config: str = ""
    host_is_visible: bool = True
    in_pod: bool = False
    policy: NodePolicy = field(default_factory=NodePolicy)
    domains: DomainOptions = field(default_factory=DomainOptions)


@dataclass(frozen=True, slots=True)
class Look:
    """The findings, and what they are based on: how the runtime is reached, and what is known about it."""

    findings: tuple[CheckResult, ...]
    access: RuntimeAccess
    runtime: RuntimeFacts | None


def look_at_hardware(place: CheckFlags) -> tuple[CheckResult, ...]:
    """Check the driver, the GPUs, and everything that kinds and features need of them."""
    hardware, checks, driver = place.node.hardware, CheckRun(), gpu_driver()
    node = Node(place.node_name, boot_id(), place.node, yields=False)
    checks.add("NVIDIA driver", lambda: driver_findings(read_driver(hardware, _named_hook(place))))
    gpus = checks.read("GPUs", lambda: read_gpus(hardware))
    if gpus is not None:
        checks.add("GPUs", lambda: gpu_findings(gpus, _device_root(place)))
    records, _ = checks.read("records", lambda: read_records(node.folders.records, driver)) or ((), {})
    inventory = gpus if isinstance(gpus, Inventory) else None
    facts = CheckFacts(node, place.policy, tuple(records), inventory)
    for name, findings in CHECKS.items():
        checks.add(name, functools.partial(findings, facts))
    if place.domains.enabled:
        checks.add("ComputeDomains", lambda: domain_findings(facts, place.domains.host_daemon(hardware)))
    checks.add("shares", lambda: share_findings(facts))
    checks.add("GPU settings", lambda: setting_findings(node, driver))
    return tuple(checks.findings)


def look(place: CheckFlags) -> Look:
    """Run all checks."""
    node, host, name = place.node, place.host, place.node_name
    checks = CheckRun()
    checks.findings += look_at_hardware(place)
    cluster = checks.read("cluster", lambda: ask_cluster(place.kubeconfig, name, place.in_pod))
    reported = (cluster.node if cluster is not None else None) or NodeVersions()
    config = str(node.folder.parent.parent / "config.yaml")
    kubelet = checks.read(
        "kubelet", lambda: read_kubelet(host, config, name, reported.arguments, visible=place.host_is_visible)
    )
    access = _runtime_access(place, kubelet)
    runtime = checks.read("container runtime", lambda: read_runtime(access, reported.runtime, str(node.cdi_root)))
    sockets = (place.sockets.registration, place.sockets.service)
    root = kubelet.root if kubelet is not None else ""
    checks.add("folders", lambda: folder_findings(host, node.registry, node.folder, node.cdi_root, sockets, root))
    checks.add("other drivers", lambda: foreign_findings(host, node.cdi_root))
    if runtime is not None:
        checks.add("container runtime", lambda: cdi_findings(runtime))
    if kubelet is not None:
        checks.add("kubelet", lambda: kubelet_findings(kubelet, reported.kubelet, name))
    if cluster is not None:
        checks.add("cluster", lambda: cluster_findings(cluster, name))
    release = reported.runtime if runtime is None else runtime.reported
    checks.add("versions", lambda: version_findings(reported.kubelet, release))
    program = NodeCheck("this program").passed(f"dra-driver-gpu {__version__}, Python {platform.python_version()}")
    return Look((*checks.findings, program), access, runtime)


def _runtime_access(place: CheckFlags, kubelet: KubeletFacts | None) -> RuntimeAccess:
    """The way to the runtime: over the socket of the flag, or else over the socket in kubelet's configuration."""
    endpoint = place.runtime_endpoint or (kubelet.endpoint if kubelet is not None else "")
    return RuntimeAccess(
        place.host,
        HostPrograms(place.host.root, enter=True),
        socket_of(endpoint),
        place.runtime_config,
        place.host_is_visible,
    )


def wait_for_hardware(
    look_again: Callable[[], Sequence[CheckResult]], say: Callable[[CheckResult], None], pause: Callable[[], None]
) -> None:
    """Repeat the checks until driver and GPUs have no failure. Report new findings each time."""
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


def _named_hook(place: CheckFlags) -> NamedHook | None:
    if place.hook is None:
        return None
    return NamedHook(place.hook, place.host.exists(place.hook) if place.host_is_visible else None)


def _device_root(place: CheckFlags) -> DriverRoot:
    """The place of device nodes: the driver's own folder if it has them, else the host."""
    hardware = place.node.hardware
    if (hardware.driver_root / "dev/nvidiactl").exists():
        dev = hardware.driver_root  # a driver container has created them there, maybe after this process started
    else:
        dev = hardware.dev_root if place.host.is_own else place.host.here("/")
    return DriverRoot(
        Root(hardware.driver_root),
        Root(dev),
        hardware.proc_root,
        hardware.sys_root,
        library_folders=hardware.library_folders,
    )


@click.command()
@flag("--node-name", default="", help="The name of the Node to check.")
@kubeconfig_option
@node_options
@policy_options
@domain_options
@hook_option
@flag(
    "--host-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"The folder at which the host's / is mounted. By default, {_HOST_ROOT} if it exists, else /.",
)
@flag(
    "--instance-uid",
    default="",
    metavar="UID",
    envvar="POD_UID",
    help="The --instance-uid of the plugin, which is part of the names of its sockets.",
)
@flag(
    "--runtime-endpoint",
    default="",
    metavar="SOCKET",
    help="The socket of the container runtime on the host. By default, the one that kubelet uses, or a usual one.",
)
@flag(
    "--runtime-config",
    default="",
    metavar="FILE",
    help="The main configuration file of containerd or CRI-O on the host, if it is not in the usual place.",
)
@flag(
    "--fix",
    is_flag=True,
    envvar="CHECK_FIX",
    help="Enable CDI in the container runtime with a new file, where the runtime reads additional files.",
)
@flag(
    "--wait",
    is_flag=True,
    envvar="CHECK_WAIT",
    help="First wait until the checks of driver and GPUs pass, and report changes on standard error.",
)
@flag(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=5.0,
    envvar="CHECK_INTERVAL",
    help="Seconds between two checks of --wait.",
)
@output_option(("text", "json"), "CHECK_OUTPUT", "The format of the findings.")
@logging_options
@version_option
@click.pass_context
def check(  # noqa: PLR0913, PLR0917  # one for each flag
    context: click.Context,
    node_name: str,
    kubeconfig: str | None,
    node: NodeFolders,
    policy: PolicyOptions,
    domains: DomainOptions,
    nvidia_cdi_hook_path: str | None,
    host_root: Path | None,
    instance_uid: str,
    runtime_endpoint: str,
    runtime_config: str,
    fix: bool,
    wait: bool,
    interval: float,
    output: str,
) -> None:
    """Check whether this node is ready for the driver, and print what to do if not. Exits with 1 if a check failed.

    Checks the NVIDIA driver, the GPUs, kubelet's folders, CDI in containerd or CRI-O, and the cluster. Changes nothing
    without --fix.
    """
    host = Host(host_root or (Path(_HOST_ROOT) if Path(_HOST_ROOT).is_dir() else Path("/")))
    place = CheckFlags(
        node_name=node_name,
        node=node,
        sockets=socket_paths(node.folder, node.registry, instance_uid),
        host=host,
        hook=nvidia_cdi_hook_path,
        kubeconfig=kubeconfig,
        runtime_endpoint=runtime_endpoint,
        runtime_config=runtime_config,
        host_is_visible=host_root is not None or not host.is_own or not in_container(os.environ),
        in_pod="KUBERNETES_SERVICE_HOST" in os.environ,
        policy=policy.on_node(node_name, memory_limits=node.hardware.memory_limits_problem is None)(),
        domains=domains,
    )
    if wait:
        # Process 1 of a container ignores this signal by default, and the deletion of its pod would wait for SIGKILL.
        # An exception would be lost where libraries catch every exception, and waiting leaves nothing to undo.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
        wait_for_hardware(
            functools.partial(look_at_hardware, place),
            lambda result: click.echo(line(result), err=True),
            functools.partial(time.sleep, interval),
        )
    found = look(place)
    findings = (*found.findings, *_fixed(found)) if fix else found.findings
    click.echo(document(findings, node_name) if output == "json" else text(findings))
    context.exit(any_failed(findings))


def _fixed(found: Look) -> Iterable[CheckResult]:
    """Correct the runtime's configuration, and tell what was done. Raises UserError."""
    try:
        written = None if found.runtime is None else fix_runtime(found.access, found.runtime)
    except FixError as error:
        raise UserError(f"--fix: {error}") from None
    return () if written is None else (written,)


def in_container(environment: Mapping[str, str]) -> bool:
    """Whether / is the root of a container instead of the host."""
    return "KUBERNETES_SERVICE_HOST" in environment or any(Path(mark).exists() for mark in _CONTAINER_MARKS)
