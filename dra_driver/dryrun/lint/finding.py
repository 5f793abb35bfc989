# SPDX-License-Identifier: Apache-2.0
"""What linting finds: a rule that was broken, where, and what to do about it."""

import enum
import re
from dataclasses import dataclass

_LEAF = re.compile(r"[^.\[\]]*(\[[^\]]*\])*$")


class Severity(enum.StrEnum):
    """Errors are refused by Kubernetes or can never work; warnings may be meant so."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is checked. `id` is stable: scripts and people refer to it."""

    id: str
    severity: Severity
    summary: str


@dataclass(frozen=True, slots=True)
class Issue:
    """A rule broken by one object. `path` is the field, `offset` a place in its text (code points, None: all of it)."""

    rule: Rule
    path: str
    message: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class LintFinding:
    """An issue in its file. Lines and columns count from 1."""

    file: str
    line: int
    column: int
    path: str
    rule: str
    severity: Severity
    message: str

    @property
    def text(self) -> str:
        """The message, and the field that it is about: `count: must be at least 1`."""
        leaf = _LEAF.search(self.path)
        return f"{leaf.group()}: {self.message}" if leaf is not None and leaf.group() else self.message

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.text} [{self.rule}]"


def error(rule_id: str, summary: str) -> Rule:
    """A rule whose breach is an error."""
    return Rule(rule_id, Severity.ERROR, summary)


def warning(rule_id: str, summary: str) -> Rule:
    """A rule whose breach is a warning."""
    return Rule(rule_id, Severity.WARNING, summary)
