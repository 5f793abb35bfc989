# SPDX-License-Identifier: Apache-2.0
"""Checks of shared GPUs: whether shares can be enforced as the policy wants, and changes of GPUs that could not be
undone after their last claim.
"""

from collections.abc import Iterator

from dra_driver.gpu.devices import Reason, describe
from dra_driver.gpu.policy import Enforcement

from ..checkfacts import CheckFacts
from ..claims.boot import marks_are_of
from ..claims.model import Driver, Undoable
from ..claims.records import read_records
from ..finding import CheckResult, NodeCheck
from ..node.node import Node

SHARES, SETTINGS = NodeCheck("shares"), NodeCheck("GPU settings")


def setting_findings(node: Node, driver: Driver) -> Iterator[CheckResult]:
    """The settings of GPUs that were changed for claims in this boot of the node, and that no claim needs any more. A
    mark counts if it exists before and after the records are read, because claims may be prepared or unprepared in
    between.
    """
    if not marks_are_of(node.folders.folder, node.boot_id):
        return
    before = {stray.mark for stray in _settings(node, driver)}
    records, unreadable = read_records(node.folders.records, driver)
    needed = {step.mark for record in records for step in record.plan.steps}
    if unreadable:  # one of these claims may need them
        return
    for stray in _settings(node, driver):
        if stray.mark in before and stray.mark not in needed:
            yield SETTINGS.warned(
                f"GPU {stray.key} still has the {stray} of an earlier claim, and no claim that expects another one"
                " gets the GPU",
                "the plugin tries to restore it again and again: the log of dra-kubeletplugin has the reason why it"
                " cannot",
            )


def _settings(node: Node, driver: Driver) -> list[Undoable]:
    """The changes that disturb other claims while they stay."""
    return [stray for step in driver.steps if step.DISTURBS for stray in step.strays(node)]


def share_findings(facts: CheckFacts) -> Iterator[CheckResult]:
    """Whether shares can be enforced as the policy says."""
    if facts.inventory is None or all(rule.enforce in (None, Enforcement.NONE) for rule in facts.policy.rules):
        return
    left_out = describe(facts.inventory, facts.policy).left_out
    unenforceable = [omission for omission in left_out if omission.reason is Reason.NOT_ENFORCEABLE]
    advice = "provide what is missing, or set another value for shares.enforce in the policy"
    limits_problem = facts.node.folders.hardware.memory_limits_problem
    if limits_problem is not None:
        advice += f" (memory-limits: {limits_problem})"
    for omission in unenforceable:
        yield SHARES.warned(f"{omission.subject}: {omission.text}; so each device belongs to one claim", advice)
    if not unenforceable:
        yield SHARES.passed("shares of GPUs can be enforced as the policy says")
