# SPDX-License-Identifier: Apache-2.0
"""The check of NVSwitches: whether Fabric Manager answers, and in which mode it is.

Nothing is checked on a node without NVSwitches. No finding is a failure, because Fabric Manager may start later.
"""

import contextlib
from collections.abc import Iterator

from dra_driver.gpu.fabric import SwitchFacts, modules_text

from ...checkfacts import CheckFacts
from ...finding import CheckResult, NodeCheck

NVSWITCH = NodeCheck("NVSwitches")


def fabric_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Ask Fabric Manager. Raises FabricError if looking for NVSwitches takes too long."""
    with contextlib.closing(facts.node.folders.hardware.session()) as session:
        if session.fabric.has_switches():
            machines = any(rule.passthrough for rule in facts.policy.rules)
            yield from switch_findings(session.fabric.read(), bool(session.fabric.identity), machines)


def _pass(text: str, _remedy: str) -> CheckResult:
    return NVSWITCH.passed(text)


def switch_findings(switches: SwitchFacts, reachable: bool, machines: bool) -> Iterator[CheckResult]:
    """Whether claims can have partitions. `reachable` tells whether the library and the socket of Fabric Manager exist,
    and `machines` whether the policy gives GPUs to virtual machines. Without machines, nothing is missing.
    """
    tell = NVSWITCH.warned if machines else _pass
    if not reachable:
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
        sizes = sorted({len(partition.modules) for partition in switches.partitions})
        active = sum(partition.active for partition in switches.partitions)
        yield NVSWITCH.passed(
            f"Fabric Manager answers and runs in a shared mode (FABRIC_MODE=1 or 2), with {len(switches.partitions)}"
            f" partitions of {modules_text(sizes)} GPUs, {active} of them active"
        )
        for partition in switches.unsupported:
            remedy = "read the log of Fabric Manager, and replace what failed"
            yield NVSWITCH.warned(f"partition {partition} is impossible because of a failure", remedy)
