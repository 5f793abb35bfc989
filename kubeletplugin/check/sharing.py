# SPDX-License-Identifier: Apache-2.0
"""Checks of what shared GPUs need: nvidia-smi for time-slice intervals, for MPS its programs and dra-mps, and what
enforces shares if the policy wants that. Also reports settings of GPUs that could not be restored after their last
claim.
"""

from collections.abc import Iterator

from dra_driver.errors import MpsError
from dra_driver.gpu.devices import Reason, describe
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.policy import Enforcement, NodePolicy
from kubeletplugin.containers.cdi.files import find_program
from kubeletplugin.features.mps.client import SupervisorClient
from kubeletplugin.features.mps.program import NAME

from ..node.marks import Marks
from ..options import NodeFolders
from ..records.format import read_records
from ..steps import MpsStep, TimeSliceStep, changed_settings
from .finding import CheckResult, NodeCheck

TIME_SLICING, MPS, SHARES = NodeCheck("time-slicing"), NodeCheck("mps"), NodeCheck("shares")
SETTINGS = NodeCheck("GPU settings")


def sharing_findings(node: NodeFolders) -> Iterator[CheckResult]:
    """Look for the programs, read the records, and ask dra-mps, which has run where its folder is."""
    root = node.driver_root.files
    records, _ = read_records(node.records)
    kinds = [{type(step) for step in record.plan.steps} for record in records]
    smi, control = find_program(root, "nvidia-smi"), find_program(root, NAME)
    yield time_slicing_finding(smi, sum(TimeSliceStep in found for found in kinds), root.host_path)
    served = sum(MpsStep in found for found in kinds)
    problem: str | None = "dra-mps has not run on this node"
    if node.mps.files.is_dir():
        try:
            SupervisorClient(node.mps.files).statuses()
            problem = None
        except MpsError as error:
            problem = str(error)
    elif not served:
        return
    yield mps_finding(control, served, problem, root.host_path)


def setting_findings(node: NodeFolders, boot_id: str) -> Iterator[CheckResult]:
    """The settings of GPUs that were changed for claims in this boot of the node, and that no claim needs any more. A
    mark counts that is there before and after the records are read, because claims come and go meanwhile.
    """
    marks = Marks(node.folder)
    if not marks.are_of(boot_id):
        return
    before = set(changed_settings(marks))
    records, unreadable = read_records(node.records)
    needed = {step for record in records for step in record.plan.steps}
    if unreadable:  # one of these claims may need them
        return
    for step in changed_settings(marks):
        if step in before and step not in needed:
            yield SETTINGS.warned(
                f"GPU {step.gpu_uuid} still has the {step} of an earlier claim, and no claim that expects another one"
                " gets the GPU",
                "the plugin tries to restore it again and again: the log of dra-kubeletplugin has the reason why it"
                " cannot",
            )


def time_slicing_finding(smi: tuple[str, str] | None, claims: int, root: str) -> CheckResult:
    """Whether claims can set time-slice intervals with nvidia-smi, which is looked for below `root`. `claims` is the
    number of claims on the node that need it.
    """
    if smi is not None:
        return TIME_SLICING.passed(smi[0])
    return (TIME_SLICING.failed if claims else TIME_SLICING.warned)(
        f"there is no nvidia-smi below {root}, so no claim can set a time-slice interval{_needed(claims)}",
        "install the utilities of NVIDIA's driver, such as nvidia-utils",
    )


def mps_finding(control: tuple[str, str] | None, claims: int, problem: str | None, root: str) -> CheckResult:
    """Whether claims can have MPS, whose program is looked for below `root`. `claims` is the number of claims on the
    node that need it, and `problem` tells why dra-mps does not answer.
    """
    if control is None:
        return MPS.failed(
            f"there is no {NAME} below {root}, so no claim can have MPS{_needed(claims)}",
            "install the compute utilities of NVIDIA's driver, such as nvidia-compute-utils",
        )
    if problem is not None:
        return (MPS.failed if claims else MPS.warned)(
            f"{problem}, so no claim can have MPS{_needed(claims)}",
            "look at the pod of the DaemonSet -mps on this node (chart: mps.enabled)",
        )
    return MPS.passed(control[0])


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
