# SPDX-License-Identifier: Apache-2.0
"""Constraints of claims that no node can meet, even if all of its devices are free.

The scheduler's allocator decides that, on the known nodes one by one: for the claim with the constraint, and without
it. So the counters of a board count, too: `matchAttribute: gpu.nvidia.com/parentUUID` for three MIG devices `3g.40gb`
asks for more than a GPU has.
"""

from collections.abc import Iterator
from dataclasses import replace

from ...kube.resource import DeviceConstraint
from .finding import LintIssue, LintRule
from .subject import ClaimSpec, LintContext


def check_satisfiable(
    claim: ClaimSpec, constraint: DeviceConstraint, path: str, context: LintContext
) -> Iterator[LintIssue]:
    """Check that an idle known node can have the devices of the claim with this constraint, which is well-formed."""
    field = "matchAttribute" if constraint.match_attribute is not None else "distinctAttribute"
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    catalog, devices = context.catalog, claim.devices
    if not catalog.is_conclusive_constraint(name) or catalog.fitting_node(devices) != "":
        return
    others = tuple(other for other in devices.constraints if other is not constraint)
    if node := catalog.fitting_node(replace(devices, constraints=others)):
        text = f"no known node has devices that meet it, even if they are all free; without it, {node} has them"
        yield LintIssue(LintRule.CONSTRAINT_CANNOT_HOLD, f"{path}.{field}", text)
