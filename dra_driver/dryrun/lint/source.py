# SPDX-License-Identifier: Apache-2.0
"""Reading files into objects with their places. An unreadable file is a finding, so that it hides no other file.

Fields have the paths that the codec writes, such as `spec.devices.requests[0].name` or `metadata.labels[app]`. Their
lines and columns come from the nodes of the YAML or JSON.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ...parsing import Loader, ParseError, decode_text, nodes, placed
from ...resource.codec import json_type
from ..documents import JSON, files_of, name_of, read_bytes, within
from .finding import Issue, LintFinding, Rule

Steps = tuple[str | int, ...]

_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")


def resolve(value: Any, path: str) -> tuple[Steps, bool]:
    """The keys and indices of `path`, as far as `value` has them, and whether this is the whole path.

    A key may contain dots (`metadata.labels.app.kubernetes.io/name`). The shortest key that exists is used.
    """
    names = [bracketed or plain for bracketed, plain in _STEP.findall(path)]
    steps: list[str | int] = []
    while names:
        step, used = _step(value, names)
        if step is None:
            return tuple(steps), False
        steps.append(step)
        value = value[step]
        names = names[used:]
    return tuple(steps), True


def _step(value: Any, names: list[str]) -> tuple[str | int | None, int]:
    """The next step into `value`, and the number of names that it consists of."""
    if isinstance(value, dict):
        for used in range(1, len(names) + 1):
            key = ".".join(names[:used])
            if key in value:
                return key, used
    if isinstance(value, list) and names[0].isdecimal() and int(names[0]) < len(value):
        return int(names[0]), 1
    return None, 0


def is_within(path: str, outer: str) -> bool:
    """Whether `path` is `outer` or a place in it."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}[")) or not outer


_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Positions:
    """The places of the fields of one object."""

    node: yaml.Node
    lines: Sequence[str]

    def of(self, steps: Steps, offset: int | None = None) -> Position:
        """The place of a field's name or of a list's item; with `offset`, of this character of the field's text.

        If the steps do not exist, it is the place of the last step that does.
        """
        node, mark = self.node, self.node.start_mark
        for step in steps:
            found = _child(node, step)
            if found is None:
                break
            node, mark = found
        else:
            if offset is not None and isinstance(node, yaml.ScalarNode):
                return _inside(node, offset, self.lines)
        return _position(mark)

    def item(self, field: str, index: int) -> "Positions":
        """The positions of one item of a list."""
        found = _child(self.node, field)
        assert found is not None
        item = _child(found[0], index)
        assert item is not None
        return Positions(item[0], self.lines)


def _child(node: yaml.Node, step: str | int) -> tuple[yaml.Node, yaml.Mark] | None:
    """The value of a key or index, and the place of the key or item. Merged mappings count."""
    if isinstance(node, yaml.SequenceNode):
        if isinstance(step, int) and step < len(node.value):
            return node.value[step], node.value[step].start_mark
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == _MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif key.value == str(step):
            return value, key.start_mark
    return next((found for one in merged if (found := _child(one, step)) is not None), None)


def _inside(node: yaml.ScalarNode, offset: int, lines: Sequence[str]) -> Position:
    """The place of a character of a scalar in any style: characters other than blanks are counted."""
    ahead = sum(not one.isspace() for one in node.value[:offset])
    line, column = node.start_mark.line, node.start_mark.column
    if node.style in ("|", ">"):
        line, column = line + 1, 0
    elif node.style in ("'", '"'):
        column += 1
    while line <= node.end_mark.line and line < len(lines):
        text = lines[line]
        while column < len(text):
            width = _width(text, column, node.style)
            if not text[column : column + width].isspace():
                if ahead == 0:
                    return Position(line + 1, column + 1)
                ahead -= 1
            column += width
        line, column = line + 1, 0
    return _position(node.start_mark)


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _width(text: str, column: int, style: str | None) -> int:
    """The number of characters in the file for one of the text: two for an escaped character."""
    pair = text[column : column + 2]
    return 2 if (style == "'" and pair == "''") or (style == '"' and pair[:1] == "\\" and len(pair) == 2) else 1


_REQUEST = re.compile(r"\brequests\[\d+\]")
DECODED_KINDS = ("ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice")
_LISTS = {"List", *(f"{kind}List" for kind in DECODED_KINDS)}


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
        """The metadata of the object; {} if it is malformed."""
        return within(self.value, "metadata")

    @property
    def namespace(self) -> str:
        """The namespace; empty if none is given: then the object fits any namespace."""
        found = self.metadata.get("namespace")
        return found if isinstance(found, str) else ""

    @property
    def name(self) -> str:
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
                for key in (key for key, _ in one.value if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE):
                    if key.value in seen:
                        message = f"key {key.value!r} is there twice: remove one"
                        yield _finding(Rule.DUPLICATE_KEY, self.file, _position(key.start_mark), "", message)
                    seen.add(key.value)

    def finding(self, issue: Issue) -> LintFinding:
        """The issue with its line and column. A request may be in the form of another version of the API."""
        forms = (issue.path, issue.path.replace(".exactly", ""), _REQUEST.sub(r"\g<0>.exactly", issue.path))
        found = [resolve(self.value, path) for path in forms]
        steps, whole = next((one for one in found if one[1]), found[0])
        place = self.positions.of(steps, issue.offset if whole else None)
        return _finding(issue.rule, self.file, place, issue.path, issue.message)


@dataclass(frozen=True, slots=True)
class Reading:
    """The objects of the files, findings about the files themselves, and the number of files."""

    sources: tuple[Source, ...]
    findings: tuple[LintFinding, ...]
    files: int

    @property
    def unreadable(self) -> bool:
        """Whether a file could not be used at all."""
        return any(finding.rule == Rule.UNREADABLE.id for finding in self.findings)


def read(paths: Iterable[str]) -> Reading:
    """Read files, folders (their YAML and JSON files) and standard input (`-`)."""
    files = _files(paths)
    found = [one for file, named in files.items() for one in _read_file(file, named=named)]
    sources = tuple(one for one in found if isinstance(one, Source))
    return Reading(sources, tuple(one for one in found if isinstance(one, LintFinding)), len(files))


def _files(paths: Iterable[str]) -> dict[str, bool]:
    """The files, and whether each was named itself. A folder without files stands for itself, and is unreadable."""
    files: dict[str, bool] = {}
    for path in paths:
        try:
            found = files_of(path) or [path]
        except OSError:
            found = [path]  # what is wrong with it is said when it is read
        for file in found:
            files[file] = files.get(file, False) or file == path
    return files


def _read_file(file: str, *, named: bool) -> Iterator[Source | LintFinding]:
    name = name_of(file)
    try:
        text = decode_text(read_bytes(file))
    except IsADirectoryError:
        yield _unreadable(name, ParseError("is a folder without .yaml, .yml and .json files"))
    except OSError as problem:
        yield _unreadable(name, ParseError(f"cannot be read: {problem.strerror}"))
    except ParseError as problem:
        yield _unreadable(name, problem)
    else:
        yield from parse(text, name, named=named)


def parse(text: str, file: str, *, named: bool = True) -> Iterator[Source | LintFinding]:
    """The objects of a YAML stream or a JSON document, and findings about the file itself.

    A document that is no object is a finding only in a file that was `named`: folders contain all kinds of YAML.
    """
    if "\t" in text and _is_json(text):
        text = text.replace("\t", " ")  # JSON may be indented so, YAML may not; strings have none in them
    try:
        with placed(text):
            yield from _documents(text, file, named=named)
    except ParseError as problem:
        yield _unreadable(file, problem)


def _documents(text: str, file: str, *, named: bool) -> Iterator[Source | LintFinding]:
    lines = text.splitlines()
    loader = _Loader(text)
    for node in nodes(loader, text):
        value = loader.construct_document(node)
        if named and not _may_be_objects(value):
            problem = f"a Kubernetes object is a mapping, not {json_type(value)}"
            yield _finding(Rule.NOT_AN_OBJECT, file, _position(node.start_mark), "", problem)
        yield from _objects(value, Positions(node, lines), file)


def _may_be_objects(value: object) -> bool:
    """Whether the value is an object, empty, or a list of mappings as other programs have."""
    return (
        value is None
        or isinstance(value, dict)
        or (isinstance(value, list) and all(type(one) is dict for one in value))
    )


def _unreadable(file: str, problem: ParseError) -> LintFinding:
    return _finding(Rule.UNREADABLE, file, Position(problem.line, problem.column), "", problem.problem)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _objects(value: Any, positions: Positions, file: str) -> Iterator[Source | LintFinding]:
    """The Kubernetes objects in a document. Other documents are ignored: repositories contain all kinds of YAML."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return
    if not isinstance(value.get("apiVersion"), str):
        if value["kind"] in DECODED_KINDS:
            problem = f"a {value['kind']} needs an apiVersion: set apiVersion: resource.k8s.io/v1"
            yield _finding(Rule.NOT_AN_OBJECT, file, positions.of(("apiVersion",)), "apiVersion", problem)
        return
    items = value.get("items")
    if value["kind"] in _LISTS and not isinstance(items, list | None):
        problem = f"must be a list, not {json_type(items)}"
        yield _finding(Rule.NOT_AN_OBJECT, file, positions.of(("items",)), "items", problem)
        return
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
            problem = f"an item of a list must be an object, not {json_type(item)}"
            yield _finding(Rule.NOT_AN_OBJECT, file, here.of(()), f"items[{index}]", problem)


def _finding(rule: Rule, file: str, place: Position, path: str, message: str) -> LintFinding:
    return LintFinding(file, place.line, place.column, path, rule.id, rule.severity, message)


class _Loader(Loader):
    """A loader for YAML with duplicate keys, which are findings of their own, and with tags, which are ignored."""

    keeps_last = True

    def construct_foreign(self, node: yaml.Node) -> None:
        """Ignores tags of other programs: Kubernetes objects have none."""
