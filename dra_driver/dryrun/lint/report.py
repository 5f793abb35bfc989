# SPDX-License-Identifier: Apache-2.0
"""Findings for people, for programs, and for GitHub's annotations."""

import json
from dataclasses import asdict
from typing import Final

from ...streams import printable
from ..report import counted
from .check import Result
from .finding import LintFinding, Severity

OUTPUTS = ("text", "json", "github")
_INDENT: Final = "\n    "


def render(result: Result, output: str) -> str:
    """The findings in one of OUTPUTS; empty when there is nothing to print."""
    if output == "json":
        findings = [asdict(one) for one in result.findings]
        counts = {"files": result.files, "objects": result.checked, "passedOver": result.passed_over}
        return json.dumps({"findings": findings, **counts}, indent=2)
    line = _annotation if output == "github" else _line
    return printable("\n".join(line(one) for one in result.findings))


def summary(result: Result) -> str:
    """One line: how much was found in how much."""
    errors = sum(one.severity is Severity.ERROR for one in result.findings)
    warnings = len(result.findings) - errors
    found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}" if result.findings else "nothing found"
    others = f", {counted(result.passed_over, 'object')} of other kinds passed over" if result.passed_over else ""
    return f"{found} in {counted(result.checked, 'object')} of {counted(result.files, 'file')}{others}"


def _line(finding: LintFinding) -> str:
    """The finding in one line, but for an expression of several lines, which is indented."""
    return str(finding).replace("\n", _INDENT)


def _annotation(finding: LintFinding) -> str:
    """A workflow command, which GitHub shows beside the line. `github` calls no other level than these two."""
    properties = {
        "file": finding.file,
        "line": str(finding.line),
        "col": str(finding.column),
        "title": f"dra-dryrun {finding.rule}",
    }
    listed = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    return f"::{finding.severity} {listed}::{_escaped(finding.text, '')}"


def _escaped(text: str, more: str) -> str:
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
