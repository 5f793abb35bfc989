# SPDX-License-Identifier: Apache-2.0
"""Checks of NVSwitches: whether Fabric Manager answers, and in which mode it is.

Nothing is checked on a node without NVSwitches. No finding is a failure, because Fabric Manager may start later.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.gpu.fabric import SwitchFacts, modules_text
from dra_driver.gpu.policy import NodePolicy

from ..options import Node
from .finding import Check, CheckResult

NVSWITCH = Check("NVSwitches")


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """What Fabric Manager reports. `reachable` tells whether its library and socket exist, and `machines` whether the
    policy gives GPUs to virtual machines.
    """

    switches: SwitchFacts
    reachable: bool
    machines: bool


def read_fabric(node: Node, policy: NodePolicy) -> FabricFacts | None:
    """Ask Fabric Manager. None on a node without NVSwitches. Raises FabricError if looking for these takes too long."""
    with contextlib.closing(node.hardware.session()) as session:
        if not session.fabric.has_switches():
            return None
        machines = any(rule.passthrough for rule in policy.rules)
        return FabricFacts(session.fabric.read(), bool(session.fabric.identity), machines)


def _pass(text: str, _remedy: str) -> CheckResult:
    return NVSWITCH.passed(text)


def fabric_findings(facts: FabricFacts | None) -> Iterator[CheckResult]:
    """Whether claims can have partitions."""
    if facts is None:
        return
    switches = facts.switches
    tell = NVSWITCH.warned if facts.machines else _pass  # without machines, nothing is missing
    if not facts.reachable:
        yield tell(
            "this node has NVSwitches, and no claim gets a partition of them, because the library libnvfm.so.1 or the"
            " socket of Fabric Manager is missing below the driver root",
            "for partitions, install nvidia-fabricmanager-dev in the version of the driver, and set FABRIC_MODE=1,"
            " FABRIC_MODE_RESTART=1 and FM_CMD_UNIX_SOCKET_PATH=/run/nvidia-fabricmanager/socket in fabricmanager.cfg",
        )
    elif switches.problem:
        yield NVSWITCH.warned(f"the partitions are unknown: {switches.problem}", "see that Fabric Manager runs")
    elif switches.shared is False:
        yield tell(
            "Fabric Manager answers, but not in shared NVSwitch mode (FABRIC_MODE is 0), so there are no partitions",
            "set FABRIC_MODE=1, because a virtual machine with some of the GPUs cannot use their NVLinks otherwise",
        )
    else:
        sizes = sorted({len(one.modules) for one in switches.partitions})
        active = sum(one.active for one in switches.partitions)
        yield NVSWITCH.passed(
            f"Fabric Manager answers and runs in a shared mode (FABRIC_MODE=1 or 2), with {len(switches.partitions)}"
            f" partitions of {modules_text(sizes)} GPUs, {active} of them active"
        )
        for one in switches.unsupported:
            remedy = "read the log of Fabric Manager, and replace what failed"
            yield NVSWITCH.warned(f"partition {one} is impossible because of a failure", remedy)
