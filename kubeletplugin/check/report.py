# SPDX-License-Identifier: Apache-2.0
"""Findings as lines for people, or as one JSON document."""

import json
from collections import Counter
from collections.abc import Sequence

from dra_driver import __version__

from .finding import Finding, Level, any_failed


def line(finding: Finding) -> str:
    """`FAIL  nvml: does not answer …`, and what to do on a line of its own."""
    first = f"{finding.level.upper()}  {finding.check}: {finding.text}"
    return f"{first}\n      to do: {finding.remedy}" if finding.remedy else first


def text(findings: Sequence[Finding]) -> str:
    """A line each, and how many of which level."""
    counts = Counter(finding.level for finding in findings)
    summary = ", ".join(f"{counts[level]} {level}" for level in Level)
    return "\n".join([*map(line, findings), summary])


def document(findings: Sequence[Finding], node: str) -> str:
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
