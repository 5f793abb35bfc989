# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of a node. A defect in a check must not hide the findings of the others."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from dra_driver.process.containment import contained

from ..finding import CheckResult, NodeCheck

T = TypeVar("T")


class CheckRun:
    """Runs checks one after the other, and collects their findings. If a check fails unexpectedly, that becomes a
    finding, and the other checks run.
    """

    def __init__(self) -> None:
        self.findings: list[CheckResult] = []

    def read(self, check: str, facts: Callable[[], T]) -> T | None:
        """The result of `facts`, or None and a finding if it fails unexpectedly."""

        def failed(error: Exception) -> None:
            text = f"this check failed unexpectedly, so its result is unknown: {error!r}"
            self.findings.append(NodeCheck(check).warned(text, "report it with the text on standard error"))

        with contained("check", check, lambda _: None, failed):
            return facts()
        return None

    def add(self, check: str, findings: Callable[[], Iterable[CheckResult]]) -> None:
        """Run a check."""
        self.findings += self.read(check, lambda: tuple(findings())) or ()
