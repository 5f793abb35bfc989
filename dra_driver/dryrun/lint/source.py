# SPDX-License-Identifier: Apache-2.0
"""The objects of files with their places. An unreadable file is a finding, so that it hides no other file."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import yaml

from ..documents import JSON, Flaw, Problem, read_all, read_text, within
from ..positions import MERGE, Position, Positions, position_of, resolve
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


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One object of a file."""

    file: str
    value: JSON
    positions: Positions

    @property
    def api_version(self) -> str:
        """The `apiVersion`, which each object has here."""
        return str(self.value["apiVersion"])

    @property
    def kind(self) -> str:
        """The kind, which each object has here."""
        return str(self.value["kind"])

    @property
    def metadata(self) -> JSON:
        """The metadata of the object; {} if it is malformed."""
        return within(self.value, "metadata")

    @property
    def namespace(self) -> str:
        """The namespace; empty if none is given: then the object fits any namespace."""
        found = self.metadata.get("namespace")
        return found if isinstance(found, str) else ""

    @property
    def name(self) -> str:
        """The name; empty if it is missing or no text."""
        found = self.metadata.get("name")
        return found if isinstance(found, str) else ""

    def duplicate_keys(self) -> Iterator[LintFinding]:
        """Findings about keys that occur twice."""
        pending, seen_nodes = [self.positions.node], set[int]()
        while pending:
            one = pending.pop()
            if id(one) in seen_nodes:  # an alias, maybe to what it is part of
                continue
            seen_nodes.add(id(one))
            if isinstance(one, yaml.SequenceNode):
                pending.extend(one.value)
            elif isinstance(one, yaml.MappingNode):
                pending.extend(value for _, value in one.value)
                seen: set[str] = set()
                for key in (key for key, _ in one.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE):
                    if key.value in seen:
                        message = f"key {key.value!r} is there twice: remove one"
                        yield _finding(LintRule.DUPLICATE_KEY, self.file, position_of(key.start_mark), "", message)
                    seen.add(key.value)

    def finding(self, issue: LintIssue) -> LintFinding:
        """The issue with its line and column. A request may be in the form of another version of the API."""
        forms = (issue.path, issue.path.replace(".exactly", ""), _REQUEST.sub(r"\g<0>.exactly", issue.path))
        found = [resolve(self.value, path) for path in forms]
        steps, whole = next((candidate for candidate in found if candidate[1]), found[0])
        place = self.positions.of(steps, issue.offset if whole else None)
        return _finding(issue.rule, self.file, place, issue.path, issue.message)


@dataclass(frozen=True, slots=True)
class FilesRead:
    """The objects of the files, findings about the files themselves, and the number of files."""

    sources: tuple[SourceObject, ...]
    findings: tuple[LintFinding, ...]
    files: int

    @property
    def unreadable(self) -> bool:
        """Whether a file could not be used at all."""
        return any(finding.rule == LintRule.UNREADABLE.id for finding in self.findings)


def read(paths: Iterable[str]) -> FilesRead:
    """Read files, folders (their YAML and JSON files) and standard input (`-`)."""
    found = read_all(paths, lenient=True)
    sources = tuple(SourceObject(document.file, document.value, document.positions) for document in found.documents)
    return FilesRead(sources, tuple(_findings(found.problems)), found.files)


def parse(text: str, file: str) -> Iterator[SourceObject | LintFinding]:
    """The objects of a YAML stream or a JSON document, and findings about the file itself."""
    found = read_text(text, file, lenient=True)
    yield from (SourceObject(document.file, document.value, document.positions) for document in found.documents)
    yield from _findings(found.problems)


def _findings(problems: Iterable[Problem]) -> Iterator[LintFinding]:
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
