# SPDX-License-Identifier: Apache-2.0
"""The check of ComputeDomains: the fabric of the node, IMEX channels, and who runs the IMEX daemon.

No finding is a failure, because pods without channels do not need any of this.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dra_driver.domains.daemon import PEER_PORT
from dra_driver.errors import ImexFilesError
from dra_driver.gpu.imex import DeviceNumbers, FabricProgress, fabric_of, read_channels, read_management

from ...checkfacts import CheckFacts
from ...containers import cdi
from ...finding import CheckResult, NodeCheck
from ...kinds.daemon import DAEMON_PROGRAMS
from .offers import HostDaemon

DOMAINS: Final = NodeCheck("ComputeDomains")

_LISTENS: Final = "0A"


def domain_findings(facts: CheckFacts, host: HostDaemon | None) -> Iterator[CheckResult]:
    """Look at the node. `host` is its own IMEX daemon, if that is the one to use."""
    if facts.inventory is None:
        return
    folders, fabric = facts.node.folders, fabric_of(facts.inventory)
    hardware = folders.hardware
    channels, management = None, None
    try:
        channels = read_channels(hardware.proc_root)
        management = read_management(hardware.proc_root)
    except ImexFilesError as error:
        yield DOMAINS.warned(str(error), "look at the files of the NVIDIA driver in /proc")
    if fabric.progress is FabricProgress.NONE:
        yield DOMAINS.passed("the GPUs are in no NVLink fabric that leaves the node: pods start without channels")
        return
    if fabric.problem:
        remedy = "look at Fabric in the output of nvidia-smi -q, and at the fabric manager of the rack"
        yield DOMAINS.warned(f"no channel can be prepared at the moment: {fabric.problem}", remedy)
    else:
        yield DOMAINS.passed(f"the GPUs are in clique {fabric.clique}")
    if channels is None:
        remedy = "load the nvidia module with NVreg_ImexChannelCount=2048, the same number on all nodes"
        yield DOMAINS.warned("the NVIDIA driver has no IMEX channels, so the node publishes none", remedy)
    else:
        yield DOMAINS.passed(f"{channels.count} IMEX channels, major number {channels.major}")
    in_use = _is_listening(hardware.proc_root / "1/net", PEER_PORT)
    if host is not None:
        yield from _of_the_host(host, in_use)
    else:
        yield from _of_the_driver(management, folders.driver_root.files, in_use)


def _of_the_host(daemon: HostDaemon, port_in_use: bool | None) -> Iterator[CheckResult]:
    problem = daemon.problem()
    if problem is None:
        yield DOMAINS.passed("the IMEX daemon of the node is ready")
        return
    remedy = "start nvidia-imex.service on the node, and compare IMEX_CMD_UNIX_DOMAIN_PATH in its configuration with"
    yield DOMAINS.warned(f"the IMEX daemon of the node is not ready: {problem}", f"{remedy} --imex-host-socket-path")
    if port_in_use is False:
        yield DOMAINS.warned(f"nothing listens on port {PEER_PORT} of the node", "start nvidia-imex.service")


def _of_the_driver(management: DeviceNumbers | None, root: cdi.Root, port_in_use: bool | None) -> Iterator[CheckResult]:
    missing = [name for name in DAEMON_PROGRAMS if cdi.find_program(root, name) is None]
    if management is None:
        remedy = "use a driver of branch 570 or later that is loaded with IMEX channels"
        yield DOMAINS.warned("the NVIDIA driver has no capability fabric-imex-mgmt, which daemons need", remedy)
    if missing:
        remedy = "install the package nvidia-imex of the same version as the NVIDIA driver"
        yield DOMAINS.warned(f"{' and '.join(missing)} not found below the driver root", remedy)
    if port_in_use:
        yield DOMAINS.warned(
            f"a program of the node listens on port {PEER_PORT}, probably its own IMEX daemon: a node can have one",
            "run systemctl disable --now nvidia-imex.service on the node, or use --imex-mode=hostManaged",
        )
    if management is not None and not missing and not port_in_use:
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
