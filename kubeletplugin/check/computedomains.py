# SPDX-License-Identifier: Apache-2.0
"""Checks of ComputeDomains: the fabric of the node, IMEX channels, and who runs the IMEX daemon.

No finding is a failure, because pods without channels do not need any of this.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver import cdi
from dra_driver.gpu.imex import (
    Channels,
    DeviceNumbers,
    FabricProgress,
    ImexFilesError,
    NodeFabric,
    fabric_of,
    read_channels,
    read_management,
)
from dra_driver.gpu.nvml import NvmlError
from dra_driver.imex import PEER_PORT

from ..computedomains.placing import HostDaemon
from ..computedomains.specs import DAEMON_PROGRAMS
from ..hardware.vfio import HostPrograms
from ..options import DomainOptions, Node
from .finding import Check, CheckResult

DOMAINS: Final = Check("ComputeDomains")

_LISTENS: Final = "0A"


@dataclass(frozen=True, slots=True)
class DomainFacts:
    """What the node has. `problems` are files that cannot be read, and `missing` are programs. `port_in_use` is None if
    it could not be found out. `host_problem` tells why the node's own daemon is not ready, if that is to be used.
    """

    host_managed: bool
    fabric: NodeFabric
    channels: Channels | None = None
    management: DeviceNumbers | None = None
    missing: tuple[str, ...] = ()
    port_in_use: bool | None = None
    host_problem: str | None = None
    problems: tuple[str, ...] = ()


def read_domain_facts(node: Node, options: DomainOptions) -> DomainFacts | None:
    """Look at the node. None if ComputeDomains are not enabled, or the GPUs cannot be read, which other checks tell."""
    if not options.enabled:
        return None
    hardware = node.hardware
    try:
        fabric = fabric_of(hardware.inventory())
    except NvmlError:
        return None
    channels, management, problems = None, None, []
    try:
        channels = read_channels(hardware.proc_root)
        management = read_management(hardware.proc_root)
    except ImexFilesError as error:
        problems.append(str(error))
    host = None
    if options.host_managed:
        programs = HostPrograms(hardware.driver_root, hardware.enter_root)
        host = HostDaemon(programs, options.host_socket).problem()
    root = node.driver_root.files
    return DomainFacts(
        options.host_managed,
        fabric,
        channels,
        management,
        tuple(name for name in DAEMON_PROGRAMS if cdi.find_program(root, name) is None),
        _is_listening(hardware.proc_root / "1/net", PEER_PORT),
        host,
        tuple(problems),
    )


def domain_findings(facts: DomainFacts | None) -> Iterator[CheckResult]:
    """The findings about ComputeDomains. None if they are not enabled."""
    if facts is None:
        return
    fabric = facts.fabric
    for problem in facts.problems:
        yield DOMAINS.warned(problem, "look at the files of the NVIDIA driver in /proc")
    if fabric.progress is FabricProgress.NONE:
        yield DOMAINS.passed("the GPUs are in no NVLink fabric that leaves the node: pods start without channels")
        return
    if fabric.problem:
        remedy = "look at Fabric in the output of nvidia-smi -q, and at the fabric manager of the rack"
        yield DOMAINS.warned(f"no channel can be prepared at the moment: {fabric.problem}", remedy)
    else:
        yield DOMAINS.passed(f"the GPUs are in clique {fabric.clique}")
    if facts.channels is None:
        remedy = "load the nvidia module with NVreg_ImexChannelCount=2048, the same number on all nodes"
        yield DOMAINS.warned("the NVIDIA driver has no IMEX channels, so the node publishes none", remedy)
    else:
        yield DOMAINS.passed(f"{facts.channels.count} IMEX channels, major number {facts.channels.major}")
    yield from _of_the_host(facts) if facts.host_managed else _of_the_driver(facts)


def _of_the_host(facts: DomainFacts) -> Iterator[CheckResult]:
    if facts.host_problem is None:
        yield DOMAINS.passed("the IMEX daemon of the node is ready")
        return
    remedy = "start nvidia-imex.service on the node, and compare IMEX_CMD_UNIX_DOMAIN_PATH in its configuration with"
    yield DOMAINS.warned(
        f"the IMEX daemon of the node is not ready: {facts.host_problem}", f"{remedy} --imex-host-socket-path"
    )
    if facts.port_in_use is False:
        yield DOMAINS.warned(f"nothing listens on port {PEER_PORT} of the node", "start nvidia-imex.service")


def _of_the_driver(facts: DomainFacts) -> Iterator[CheckResult]:
    if facts.management is None:
        remedy = "use a driver of branch 570 or later that is loaded with IMEX channels"
        yield DOMAINS.warned("the NVIDIA driver has no capability fabric-imex-mgmt, which daemons need", remedy)
    if facts.missing:
        remedy = "install the package nvidia-imex of the same version as the NVIDIA driver"
        yield DOMAINS.warned(f"{' and '.join(facts.missing)} not found below the driver root", remedy)
    if facts.port_in_use:
        yield DOMAINS.warned(
            f"a program of the node listens on port {PEER_PORT}, probably its own IMEX daemon: a node can have one",
            "run systemctl disable --now nvidia-imex.service on the node, or use --imex-mode=hostManaged",
        )
    if facts.management is not None and not facts.missing and not facts.port_in_use:
        yield DOMAINS.passed("the driver can run an IMEX daemon on the node")


def _is_listening(net: Path, port: int) -> bool | None:
    """Whether a TCP socket of this network namespace (a folder such as /proc/1/net) listens on the port. None if that
    cannot be found out.
    """
    try:
        lines = (net / "tcp").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a kernel without IPv6 has no such file
        lines += (net / "tcp6").read_text(encoding="ascii").splitlines()
    rows = (line.split() for line in lines)
    return any(len(row) > 3 and row[1].endswith(f":{port:04X}") and row[3] == _LISTENS for row in rows)
