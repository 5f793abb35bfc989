# SPDX-License-Identifier: Apache-2.0
"""The result of a check: what was checked, the level, the text and the remedy; printed as lines or as JSON."""

import enum
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver import __version__


class Level(enum.StrEnum):
    """How a thing is. FAIL: pods will not get GPUs; WARN: something will be missing, or could not be seen."""

    PASS = "pass"  # noqa: S105 - no password
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`check` names what was looked at, `text` is what was seen, `remedy` what to do unless all is well."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def passed(check: str, text: str) -> CheckResult:
    """All is well."""
    return CheckResult(check, Level.PASS, text)


def warned(check: str, text: str, remedy: str) -> CheckResult:
    """It works, but not everything does, or nobody could tell."""
    return CheckResult(check, Level.WARN, text, remedy)


def failed(check: str, text: str, remedy: str) -> CheckResult:
    """Pods will not get GPUs before this is mended."""
    return CheckResult(check, Level.FAIL, text, remedy)


def any_failed(findings: Iterable[CheckResult]) -> bool:
    """Whether one of them is a failure."""
    return any(finding.level is Level.FAIL for finding in findings)


def line(finding: CheckResult) -> str:
    """`FAIL  nvml: does not answer …`, and what to do on a line of its own."""
    first = f"{finding.level.upper()}  {finding.check}: {finding.text}"
    return f"{first}\n      to do: {finding.remedy}" if finding.remedy else first


def text(findings: Sequence[CheckResult]) -> str:
    """A line each, and how many of which level."""
    counts = Counter(finding.level for finding in findings)
    summary = ", ".join(f"{counts[level]} {level}" for level in Level)
    return "\n".join([*map(line, findings), summary])


def document(findings: Sequence[CheckResult], node: str) -> str:
    """`{"node", "version", "ok", "findings": [{"check", "level", "text", "remedy"}]}`; ok: nothing failed."""
    value = {
        "node": node,
        "version": __version__,
        "ok": not any_failed(findings),
        "findings": [
            {"check": one.check, "level": str(one.level), "text": one.text, "remedy": one.remedy} for one in findings
        ],
    }
    return json.dumps(value, indent=2)
