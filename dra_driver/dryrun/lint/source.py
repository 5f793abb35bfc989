# SPDX-License-Identifier: Apache-2.0
"""Files into objects that know their places. What cannot be read is a finding, so that one file hides no other."""

import json
import re
import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...resource.codec import json_type
from ..documents import JSON, STDIN
from .finding import Finding, Issue, Rule, error
from .nesting import excess
from .paths import resolve
from .positions import Positions, duplicate_keys

UNREADABLE = error("unreadable", "The file cannot be read, or is not YAML or JSON.")
DUPLICATE_KEY = error("duplicate-key", "A key is there twice; the API server refuses that.")
NOT_AN_OBJECT = error("not-an-object", "An object of resource.k8s.io lacks its apiVersion, or is not a mapping.")
RULES = (UNREADABLE, DUPLICATE_KEY, NOT_AN_OBJECT)

_REQUEST = re.compile(r"\brequests\[\d+\]")
_SUFFIXES = {".yaml", ".yml", ".json"}
_DEVICE_KINDS = {"ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"}


@dataclass(frozen=True, slots=True)
class Source:
    """One object of a file."""

    file: str
    value: JSON
    positions: Positions

    @property
    def api_version(self) -> str:
        return str(self.value["apiVersion"])

    @property
    def kind(self) -> str:
        return str(self.value["kind"])

    @property
    def metadata(self) -> JSON:
        """What there is of it, {} where it is malformed."""
        found = self.value.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def namespace(self) -> str:
        """The namespace, empty when none is given: then the object may go to any."""
        found = self.metadata.get("namespace")
        return found if isinstance(found, str) else ""

    @property
    def name(self) -> str:
        found = self.metadata.get("name")
        return found if isinstance(found, str) else ""

    def duplicate_keys(self) -> Iterator[Finding]:
        """Keys that are there twice."""
        for key, place in duplicate_keys(self.positions.node):
            message = f"key {key!r} is there twice: remove one"
            yield _finding(DUPLICATE_KEY, self.file, place.line, place.column, "", message)

    def finding(self, issue: Issue) -> Finding:
        """The issue with its line and column. A request may be in the form of another version of the API."""
        forms = (issue.path, issue.path.replace(".exactly", ""), _REQUEST.sub(r"\g<0>.exactly", issue.path))
        found = [resolve(self.value, path) for path in forms]
        steps, whole = next((one for one in found if one[1]), found[0])
        place = self.positions.of(steps, issue.offset if whole else None)
        return _finding(issue.rule, self.file, place.line, place.column, issue.path, issue.message)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the files hold: objects, findings about the files themselves, and how many files there were."""

    sources: tuple[Source, ...]
    findings: tuple[Finding, ...]
    files: int

    @property
    def unreadable(self) -> bool:
        """Whether a file could not be used at all."""
        return any(finding.rule == UNREADABLE.id for finding in self.findings)


def read(paths: Iterable[str]) -> Reading:
    """Everything in files, folders (their YAML and JSON files) and standard input (`-`)."""
    sources: list[Source] = []
    findings: list[Finding] = []
    files = list(dict.fromkeys(file for path in paths for file in _files(path)))
    for file in files:
        for one in _read_file(file):
            if isinstance(one, Source):
                sources.append(one)
            else:
                findings.append(one)
    return Reading(tuple(sources), tuple(findings), len(files))


def _files(path: str) -> list[str]:
    """The files that `path` stands for; itself when it is a folder without any, which is then found unreadable."""
    if path == STDIN or not Path(path).is_dir():
        return [path]
    return sorted(str(one) for one in Path(path).rglob("*") if one.suffix in _SUFFIXES and one.is_file()) or [path]


def _read_file(file: str) -> Iterator[Source | Finding]:
    name = "standard input" if file == STDIN else file
    if file != STDIN and Path(file).is_dir():
        yield _finding(UNREADABLE, name, 1, 1, "", "is a folder without .yaml, .yml and .json files")
        return
    try:
        data = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as problem:
        yield _finding(UNREADABLE, name, 1, 1, "", f"cannot be read: {problem.strerror}")
        return
    except UnicodeDecodeError as problem:
        line = problem.object[: problem.start].count(b"\n") + 1
        yield _finding(UNREADABLE, name, line, 1, "", "is not UTF-8 text: save it as UTF-8")
        return
    yield from parse(text, name)


def parse(text: str, file: str) -> Iterator[Source | Finding]:
    """The objects of a YAML stream or a JSON document, and what is wrong with it as such."""
    if "\t" in text and _is_json(text):
        text = re.sub("\t", " ", text)  # JSON may be indented so, YAML may not; strings have none in them
    try:
        yield from _documents(text, file)
    except yaml.reader.ReaderError as problem:
        yield _not_yaml(file, text[: problem.position].count("\n") + 1, 1, str(problem.reason))
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        yield _not_yaml(file, line, column, ", ".join(part for part in (problem.context, problem.problem) if part))
    except RecursionError:
        yield _not_yaml(file, 1, 1, "it is nested too deeply")


def _documents(text: str, file: str) -> Iterator[Source | Finding]:
    lines = text.splitlines()
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            if problem := excess(node):
                yield _not_yaml(file, node.start_mark.line + 1, 1, f"the document {problem}")
            else:
                yield from _objects(loader.construct_document(node), Positions(node, lines), file)
    finally:
        loader.dispose()


def _not_yaml(file: str, line: int, column: int, problem: str) -> Finding:
    return _finding(UNREADABLE, file, line, column, "", f"is not YAML: {problem}")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


def _objects(value: Any, positions: Positions, file: str) -> Iterator[Source | Finding]:
    """The Kubernetes objects in a document. Others are passed over: repositories hold all kinds of YAML."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return
    if not isinstance(value.get("apiVersion"), str):
        if value["kind"] in _DEVICE_KINDS:
            place = positions.of(("apiVersion",))
            problem = f"a {value['kind']} needs an apiVersion: set apiVersion: resource.k8s.io/v1"
            yield _finding(NOT_AN_OBJECT, file, place.line, place.column, "apiVersion", problem)
        return
    items = value.get("items")
    if not value["kind"].endswith("List") or not isinstance(items, list):
        yield Source(file, value, positions)
        return
    kind = value["kind"].removesuffix("List")
    inherited = {"apiVersion": value["apiVersion"], "kind": kind} if kind else {}
    for index, item in enumerate(items):
        here = positions.item("items", index)
        if isinstance(item, dict):
            yield from _objects({**inherited, **item}, here, file)
        else:
            place = here.of(())
            problem = f"an item of a list must be an object, not {json_type(item)}"
            yield _finding(NOT_AN_OBJECT, file, place.line, place.column, f"items[{index}]", problem)


def _finding(rule: Rule, file: str, line: int, column: int, path: str, message: str) -> Finding:
    return Finding(file, line, column, path, rule.id, rule.severity, message)


class _Loader(yaml.CSafeLoader):
    """Times stay text and keys become text, as the API server reads them."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose keys are those of JSON."""
        mapping = super().construct_mapping(node, deep)
        return {key if isinstance(key, str) else json.dumps(key, default=str): one for key, one in mapping.items()}

    def construct_time(self, node: yaml.ScalarNode) -> str:
        """A time as it was written."""
        return str(node.value)

    def construct_foreign(self, node: yaml.Node) -> None:
        """Tags of other programs: no Kubernetes object has any."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_time)
_Loader.add_constructor(None, _Loader.construct_foreign)
