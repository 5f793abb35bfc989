# SPDX-License-Identifier: Apache-2.0
"""Checks of what shared GPUs need: nvidia-smi for time-slice intervals, for MPS its programs and dra-mps, and what
enforces shares if the policy wants that.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.cdi.files import find_program
from dra_driver.gpu.devices import Reason, describe
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import Enforcement, NodePolicy
from dra_driver.mps.client import SupervisorClient
from dra_driver.mps.errors import MpsError
from dra_driver.mps.program import NAME

from ..options import Node
from ..records.format import read_records
from ..steps import MpsStep, TimeSliceStep
from .finding import Check, CheckResult

TIME_SLICING, MPS, SHARES = Check("time-slicing"), Check("mps"), Check("shares")


@dataclass(frozen=True, slots=True)
class SharingFacts:
    """Paths of programs below `driver_root`, None for those that are missing; how many claims on the node need each;
    and why dra-mps does not answer, None when it does. MPS is `enabled` where dra-mps has run.
    """

    driver_root: str
    smi: str | None
    mps_control: str | None
    intervals: int = 0
    served: int = 0
    enabled: bool = False
    supervisor: str | None = None


def read_sharing(node: Node) -> SharingFacts:
    """Look for the programs, read the records, and ask dra-mps."""
    root = node.driver_root.files
    records, _ = read_records(node.records)
    kinds = [{type(step) for step in record.plan.steps} for record in records]
    problem = None
    enabled = node.mps.files.is_dir()
    if enabled:
        try:
            SupervisorClient(node.mps.files).statuses()
        except MpsError as error:
            problem = str(error)
    smi, control = find_program(root, "nvidia-smi"), find_program(root, NAME)
    return SharingFacts(
        driver_root=root.host_path,
        smi=smi[0] if smi else None,
        mps_control=control[0] if control else None,
        intervals=sum(TimeSliceStep in found for found in kinds),
        served=sum(MpsStep in found for found in kinds),
        enabled=enabled,
        supervisor=problem,
    )


def sharing_findings(facts: SharingFacts) -> Iterator[CheckResult]:
    """Whether claims that configure sharing can be prepared."""
    if facts.smi is not None:
        yield TIME_SLICING.passed(facts.smi)
    else:
        yield (TIME_SLICING.failed if facts.intervals else TIME_SLICING.warned)(
            f"there is no nvidia-smi below {facts.driver_root}, so no claim can set a time-slice interval"
            + _needed(facts.intervals),
            "install the utilities of NVIDIA's driver, such as nvidia-utils",
        )
    if not (facts.enabled or facts.served):
        return
    if facts.mps_control is None:
        yield MPS.failed(
            f"there is no {NAME} below {facts.driver_root}, so no claim can have MPS{_needed(facts.served)}",
            "install the compute utilities of NVIDIA's driver, such as nvidia-compute-utils",
        )
    elif facts.supervisor is not None or not facts.enabled:
        problem = facts.supervisor or "dra-mps has not run on this node"
        yield (MPS.failed if facts.served else MPS.warned)(
            f"{problem}, so no claim can have MPS{_needed(facts.served)}",
            "look at the pod of the DaemonSet -mps on this node (chart: mps.enabled)",
        )
    else:
        yield MPS.passed(facts.mps_control)


def share_findings(hardware: Hardware, policy: NodePolicy) -> Iterator[CheckResult]:
    """Whether shares can be enforced as the policy says. Raises NvmlError."""
    if all(rule.enforce in (None, Enforcement.NONE) for rule in policy.rules):
        return
    left_out = describe(hardware.inventory(), policy).left_out
    unenforceable = [one for one in left_out if one.reason is Reason.NOT_ENFORCEABLE]
    advice = "provide what is missing, or set another value for shares.enforce in the policy"
    if hardware.memory_limits_problem is not None:
        advice += f" (memory-limits: {hardware.memory_limits_problem})"
    for one in unenforceable:
        yield SHARES.warned(f"{one.subject}: {one.text}; so each device belongs to one claim", advice)
    if not unenforceable:
        yield SHARES.passed("shares of GPUs can be enforced as the policy says")


def _needed(claims: int) -> str:
    return f"; {claims} claims on this node need it" if claims else ""
