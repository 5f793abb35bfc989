# SPDX-License-Identifier: Apache-2.0
"""Time-slicing of whole GPUs: the interval in which processes take turns, and a compute mode that admits several."""

from collections.abc import Iterable, Iterator

from dra_driver.config import Strategy
from dra_driver.gpu.nvml import ComputeMode

from ..checkfacts import CheckFacts
from ..claims.model import Step
from ..containers.cdi.files import find_program
from ..finding import CheckResult, NodeCheck
from ..kinds.container import Allotted
from ..kinds.settings.hardware import LEVELS
from ..kinds.settings.steps import ComputeModeStep, TimeSliceStep

TIME_SLICING = NodeCheck("time-slicing")


def time_slicing_steps(allotted: Iterable[Allotted]) -> tuple[Step, ...]:
    """The settings of the GPUs whose configuration asks for time-slicing."""
    steps: list[Step] = []
    for device in allotted:
        if device.is_whole_gpu and device.sharing is not None and device.sharing.strategy is Strategy.TIME_SLICING:
            steps.append(ComputeModeStep(device.gpu.uuid, ComputeMode.DEFAULT))
            steps.append(TimeSliceStep(device.gpu.uuid, LEVELS[device.sharing.interval]))
    return tuple(steps)


def time_slicing_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Look for nvidia-smi."""
    root = facts.node.folders.driver_root.files
    claims = sum(any(isinstance(step, TimeSliceStep) for step in record.plan.steps) for record in facts.records)
    yield time_slicing_finding(find_program(root, "nvidia-smi"), claims, root.host_path)


def time_slicing_finding(smi: tuple[str, str] | None, claims: int, root: str) -> CheckResult:
    """Whether claims can set time-slice intervals with nvidia-smi, which is looked for below `root`. `claims` is the
    number of claims on the node that need it.
    """
    if smi is not None:
        return TIME_SLICING.passed(smi[0])
    return (TIME_SLICING.failed if claims else TIME_SLICING.warned)(
        f"there is no nvidia-smi below {root}, so no claim can set a time-slice interval"
        f"{f'; {claims} claims on this node need it' if claims else ''}",
        "install the utilities of NVIDIA's driver, such as nvidia-utils",
    )
