# SPDX-License-Identifier: Apache-2.0
"""What a check says: one thing, how it is, and what to do about it."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Level(enum.StrEnum):
    """How a thing is. FAIL: pods will not get GPUs; WARN: something will be missing, or could not be seen."""

    PASS = "pass"  # noqa: S105 - no password
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` names what was looked at, `text` is what was seen, `remedy` what to do unless all is well."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def passed(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Level.PASS, text)


def warned(check: str, text: str, remedy: str) -> Finding:
    """It works, but not everything does, or nobody could tell."""
    return Finding(check, Level.WARN, text, remedy)


def failed(check: str, text: str, remedy: str) -> Finding:
    """Pods will not get GPUs before this is mended."""
    return Finding(check, Level.FAIL, text, remedy)


def any_failed(findings: Iterable[Finding]) -> bool:
    """Whether one of them is a failure."""
    return any(finding.level is Level.FAIL for finding in findings)
