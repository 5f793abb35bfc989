# SPDX-License-Identifier: Apache-2.0
"""The check of what claims with MPS need: NVIDIA's program, and dra-mps."""

from collections.abc import Iterator

from dra_driver.errors import MpsError

from ...checkfacts import CheckFacts
from ...containers.cdi.files import find_program
from ...finding import CheckResult, NodeCheck
from .program import NAME
from .services import MpsServices
from .step import mps_steps_of

MPS = NodeCheck("mps")


def mps_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Look for the program, and ask dra-mps, which has run where its folder is."""
    claims = sum(bool(mps_steps_of(record.plan)) for record in facts.records)
    services = facts.node.of(MpsServices)
    problem: str | None = "dra-mps has not run on this node"
    if services.files.folder.is_dir():
        try:
            services.statuses()
            problem = None
        except MpsError as error:
            problem = str(error)
    elif not claims:
        return
    root = facts.node.folders.driver_root.files
    yield mps_finding(find_program(root, NAME), claims, problem, root.host_path)


def mps_finding(control: tuple[str, str] | None, claims: int, problem: str | None, root: str) -> CheckResult:
    """Whether claims can have MPS, whose program is looked for below `root`. `claims` is the number of claims on the
    node that need it, and `problem` tells why dra-mps does not answer.
    """
    needed = f"; {claims} claims on this node need it" if claims else ""
    if control is None:
        return MPS.failed(
            f"there is no {NAME} below {root}, so no claim can have MPS{needed}",
            "install the compute utilities of NVIDIA's driver, such as nvidia-compute-utils",
        )
    if problem is not None:
        return (MPS.failed if claims else MPS.warned)(
            f"{problem}, so no claim can have MPS{needed}",
            "look at the pod of the DaemonSet -mps on this node (chart: mps.enabled)",
        )
    return MPS.passed(control[0])
