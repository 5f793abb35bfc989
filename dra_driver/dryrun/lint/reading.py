# SPDX-License-Identifier: Apache-2.0
"""Findings about files and documents, and the places of issues. An unreadable file hides no other file."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import yaml

from ..documents import Document, Flaw, Problem, Read
from ..positions import MERGE, Position, position_of, resolve
from .finding import LintFinding, LintIssue, LintRule

_REQUEST = re.compile(r"\brequests\[\d+\]")
DECODED_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")

_RULES: Final = {
    Flaw.UNREADABLE: LintRule.UNREADABLE,
    Flaw.TEMPLATE: LintRule.UNREADABLE,
    Flaw.NO_FILE: LintRule.UNREADABLE,
    Flaw.EMPTY_FOLDER: LintRule.UNREADABLE,
    Flaw.NO_MAPPING: LintRule.NOT_AN_OBJECT,
    Flaw.NO_ITEMS: LintRule.NOT_AN_OBJECT,
}


def is_unreadable(read: Read) -> bool:
    """Whether a file could not be used at all."""
    return any(_RULES.get(problem.flaw) is LintRule.UNREADABLE for problem in read.problems)


def duplicate_keys(document: Document) -> Iterator[LintFinding]:
    """Findings about keys that occur twice."""
    pending, seen_nodes = [document.positions.node], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen_nodes:  # an alias, maybe to what it is part of
            continue
        seen_nodes.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            pending.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            pending.extend(value for _, value in node.value)
            seen: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE):
                if key.value in seen:
                    message = f"key {key.value!r} is there twice: remove one"
                    yield _finding(LintRule.DUPLICATE_KEY, document.file, position_of(key.start_mark), "", message)
                seen.add(key.value)


def finding_of(document: Document, issue: LintIssue) -> LintFinding:
    """The issue with its line and column. A request may be in the form of another version of the API."""
    forms = (issue.path, issue.path.replace(".exactly", ""), _REQUEST.sub(r"\g<0>.exactly", issue.path))
    found = [resolve(document.value, path) for path in forms]
    steps, whole = next((candidate for candidate in found if candidate[1]), found[0])
    place = document.positions.of(steps, issue.offset if whole else None)
    return _finding(issue.rule, document.file, place, issue.path, issue.message)


def findings_of_files(problems: Iterable[Problem]) -> Iterator[LintFinding]:
    """Findings about files. Other documents are ignored: repositories contain all kinds of YAML."""
    for problem in problems:
        text, path = problem.text, problem.path
        if problem.flaw is Flaw.NO_FILE:
            text = f"cannot be read: {text}"
        elif problem.flaw is Flaw.EMPTY_FOLDER:
            text = "is a folder without .yaml, .yml and .json files"
        elif problem.flaw is Flaw.NO_IDENTITY and problem.kind in DECODED_KINDS:
            text, path = f"a {problem.kind} needs an apiVersion: set apiVersion: resource.k8s.io/v1", "apiVersion"
        elif problem.flaw not in _RULES:
            continue
        yield _finding(_RULES.get(problem.flaw, LintRule.NOT_AN_OBJECT), problem.file, problem.position, path, text)


def _finding(rule: LintRule, file: str, place: Position, path: str, message: str) -> LintFinding:
    return LintFinding(file, place.line, place.column, path, rule.id, rule.severity, message)
