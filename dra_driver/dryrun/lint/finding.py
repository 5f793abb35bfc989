# SPDX-License-Identifier: Apache-2.0
"""The findings of lint: the violated rule, the place, and the remedy."""

import enum
import re
from dataclasses import dataclass

_LEAF = re.compile(r"[^.\[\]]*(\[[^\]]*\])*$")


class Severity(enum.StrEnum):
    """Errors are refused by Kubernetes or can never work. Warnings may be intended."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. Its `id` never changes, because scripts and people refer to it."""

    id: str
    severity: Severity
    summary: str


@dataclass(frozen=True, slots=True)
class Issue:
    """A violation of a rule. `path` is the field, `offset` a place in its text (code points; None: the whole text)."""

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
    """A rule whose violation is an error."""
    return Rule(rule_id, Severity.ERROR, summary)


def warning(rule_id: str, summary: str) -> Rule:
    """A rule whose violation is a warning."""
    return Rule(rule_id, Severity.WARNING, summary)
