# SPDX-License-Identifier: Apache-2.0
"""The result of a check: what was checked, the level, the text and the remedy; printed as lines or as JSON."""

import enum
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver import __version__


class Level(enum.StrEnum):
    """The level of a finding. FAIL: pods cannot get GPUs. WARN: something will be missing, or could not be checked."""

    PASS = "pass"  # noqa: S105 - not a password
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`check` is the name of the check, `text` what was found, and `remedy` what to do about it, if anything."""

    check: str
    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A check, by the name of its results."""

    name: str

    def passed(self, text: str) -> CheckResult:
        """Everything is as it should be."""
        return CheckResult(self.name, Level.PASS, text)

    def warned(self, text: str, remedy: str) -> CheckResult:
        """Something will be missing, or could not be checked."""
        return CheckResult(self.name, Level.WARN, text, remedy)

    def failed(self, text: str, remedy: str) -> CheckResult:
        """Pods cannot get GPUs until this is corrected."""
        return CheckResult(self.name, Level.FAIL, text, remedy)


def any_failed(findings: Iterable[CheckResult]) -> bool:
    """Whether there is a failure."""
    return any(finding.level is Level.FAIL for finding in findings)


def line(finding: CheckResult) -> str:
    """`FAIL  nvml: does not answer …`, and the remedy on another line."""
    first = f"{finding.level.upper()}  {finding.check}: {finding.text}"
    return f"{first}\n      to do: {finding.remedy}" if finding.remedy else first


def text(findings: Sequence[CheckResult]) -> str:
    """The lines of all findings, and the number of findings of each level."""
    counts = Counter(finding.level for finding in findings)
    summary = ", ".join(f"{counts[level]} {level}" for level in Level)
    return "\n".join([*map(line, findings), summary])


def document(findings: Sequence[CheckResult], node: str) -> str:
    """`{"node", "version", "ok", "findings": [{"check", "level", "text", "remedy"}]}`. `ok` is true without
    failures.
    """
    value = {
        "node": node,
        "version": __version__,
        "ok": not any_failed(findings),
        "findings": [
            {"check": finding.check, "level": str(finding.level), "text": finding.text, "remedy": finding.remedy}
            for finding in findings
        ],
    }
    return json.dumps(value, indent=2)
