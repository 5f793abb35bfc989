# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON documents from files, folders and standard input: the one reader of files, for every subcommand.

Each object knows its lines and columns. An object that cannot be used becomes a Problem. The other objects are still
read.
"""

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ..errors import ParseError
from ..kube.resource.codec import DecodeError, json_type
from ..process.collection import collection_paused
from ..process.parsing import Loader, decode_text, load, load_all, nodes, placed
from ..process.streams import printable, read_standard_input
from .positions import Position, Positions, resolve
from .status import Note, NotesError

JSON = dict[str, Any]

STDIN = "-"
_SUFFIXES = {".yaml", ".yml", ".json"}

_TEMPLATE_TEXT: Final = "has '{{' and is not YAML, as a template of Helm"
_FIRST: Final = Position(1, 1)

Convert = Callable[[object, str], object]
"""(value, source) -> the value, or the object that it stands for."""

Select = Callable[[Sequence[str]], Iterable[int]]
"""The JSON texts of the items of a List -> the numbers of the items that are read."""

_LIST_BEGIN: Final = '{"apiVersion":"v1","kind":"List","items":['
_LIST_END: Final = "]}"

_START: Final = yaml.Mark("", 0, 0, 0, "", 0)
_NEXT: Final = re.compile(r"---(\s|$)")

_CLUSTERED = frozenset(
    {
        "DeviceClass",
        "ResourceSlice",
        "DeviceTaintRule",
        "Node",
        "Namespace",
        "PersistentVolume",
        "PriorityClass",
        "RuntimeClass",
        "StorageClass",
        "CSINode",
        "CSIDriver",
    }
)
"""Kinds whose objects are in no namespace."""

_LISTS: Final = ("List", "ResourceClaimList", "ResourceClaimTemplateList", "DeviceClassList", "ResourceSliceList")


def within(value: object, *path: str) -> dict[str, Any]:
    """The mapping at a path of mappings, an empty one if there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def each(value: object, *path: str) -> list[dict[str, Any]]:
    """The mappings in the list at a path of mappings, none if there is no list."""
    found = within(value, *path[:-1]).get(path[-1])
    return [element for element in found if isinstance(element, dict)] if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it was: `pods.yaml, document 2`. `stored`: the cluster has it.

    `origin` is the text that has it: `number` is its YAML document there (from 0), `items` its places in Lists.
    """

    value: JSON
    source: str
    stored: bool = False
    origin: "Text | None" = dataclasses.field(default=None, repr=False, compare=False)
    number: int = 0
    items: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of the object; empty if it names none."""
        return str(self.value.get("kind", ""))

    @property
    def api_version(self) -> str:
        """The `apiVersion` of the object; empty if it names none."""
        return str(self.value.get("apiVersion", ""))

    @property
    def metadata(self) -> JSON:
        """The metadata of the object; {} if they are malformed."""
        return within(self.value, "metadata")

    @property
    def own_namespace(self) -> str:
        """The namespace that the object names; empty if it names none, and so fits any namespace."""
        found = self.metadata.get("namespace")
        return found if isinstance(found, str) else ""

    @property
    def own_name(self) -> str:
        """The name without a namespace; empty if it is missing or no text."""
        found = self.metadata.get("name")
        return found if isinstance(found, str) else ""

    @property
    def is_empty_list(self) -> bool:
        """Whether it is a list of one kind (`PodList`) without items."""
        return self.kind.endswith("List") and self.value.get("items") == []

    @property
    def namespace(self) -> str:
        """The namespace of the object, `default` if it names none."""
        return within(self.value, "metadata").get("namespace") or "default"

    @property
    def name(self) -> str:
        """`namespace/name`, or the name alone."""
        meta = within(self.value, "metadata")
        namespace, name = meta.get("namespace"), str(meta.get("name") or meta.get("generateName") or "(no name)")
        return f"{namespace}/{name}" if namespace else name

    @property
    def file(self) -> str:
        """The name of the file, empty for an object of a cluster."""
        return self.origin.file if self.origin is not None else ""

    @property
    def positions(self) -> Positions:
        """The places of the fields in the file. Only for an object of a file."""
        assert self.origin is not None
        return self.origin.positions(self.number, self.items)

    def position(self, path: str) -> Position | None:
        """The place of a field, or of the nearest field around it. None for an object of a cluster."""
        if self.origin is None:
            return None
        return self.positions.of(resolve(self.value, path)[0])

    def note(self, text: str, path: str = "") -> Note:
        """A note about the object, with the place of a field."""
        place = self.position(path)
        if place is None:
            return Note(f"{self.kind} {self.name}", text, self.source)
        return Note(f"{self.kind} {self.name}", text, self.file, place.line, place.column)

    def __str__(self) -> str:
        return f"{self.source}: {self.kind} {self.name}"


class DocumentError(NotesError):
    """Objects that the API server would refuse, with the reasons and their places."""

    def __init__(self, *problems: tuple[Document, DecodeError]) -> None:
        super().__init__(*(document.note(str(problem), problem.path) for document, problem in problems))


class Flaw(enum.Enum):
    """An error in a file or in a document."""

    UNREADABLE = "is not YAML or JSON"
    TEMPLATE = "is a template and not YAML"
    NO_FILE = "cannot be read"
    EMPTY_FOLDER = "is a folder without files"
    NO_MAPPING = "is no mapping"
    LIST = "is a list of mappings, as other programs have"
    NO_IDENTITY = "lacks apiVersion or kind"
    NO_ITEMS = "is a List whose items are no objects"
    NO_NAME = "cannot be named"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file or a document cannot be used. `kind` is that of the object if it is known, and `path` the field."""

    flaw: Flaw
    text: str
    file: str
    position: Position = _FIRST
    path: str = ""
    kind: str = ""

    @property
    def note(self) -> Note:
        """The problem as an error of a report. A file that cannot be read has no lines."""
        if self.flaw in (Flaw.NO_FILE, Flaw.EMPTY_FOLDER):
            return Note("", self.text, self.file)
        return Note("", self.text, self.file, self.position.line, self.position.column)


@dataclass(frozen=True, slots=True)
class Read:
    """The objects of files, what cannot be used of them, and the number of files."""

    documents: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()
    files: int = 0

    def __add__(self, other: "Read") -> "Read":
        return Read(self.documents + other.documents, self.problems + other.problems, self.files + other.files)


class Text:
    """The text of a file. Its YAML nodes, which know lines and columns, are made when they are needed."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text

    def values(self) -> Iterator[tuple[int, object | ParseError]]:
        """The number and the value of each document, strictly read, or the error in its place."""
        try:
            yield from enumerate(load_all(self.text))
        except ParseError:
            yield from ((number, value) for number, _, value in _stream(self.text, Loader))

    @cached_property
    def documents(self) -> list[tuple[yaml.Node | None, object | ParseError]]:
        """The node and the value of each document, read leniently: keys may occur twice, and tags are ignored."""
        text = self.text
        if "\t" in text and _is_json(text):
            text = text.replace("\t", " ")  # JSON may be indented so, YAML may not; strings have none in them
        return [(node, value) for _, node, value in _stream(text, LenientLoader)]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text."""
        return self.text.splitlines()

    def positions(self, number: int, items: Sequence[int]) -> Positions:
        """The places of the fields of an object."""
        node = self.documents[number][0] if number < len(self.documents) else None
        found = Positions(node if node is not None else yaml.MappingNode("", [], _START, _START), self.lines)
        for index in items:
            found = found.item("items", index)
        return found


class LenientLoader(Loader):
    """A loader for YAML with duplicate keys and with tags. Their values are kept as far as possible."""

    keeps_last = True

    def construct_foreign(self, node: yaml.Node) -> None:
        """Ignores tags of other programs: Kubernetes objects have none."""


def _stream(text: str, make: Callable[[str], Loader]) -> Iterator[tuple[int, yaml.Node | None, object | ParseError]]:
    """Number, node and value of each document of a YAML stream. An error ends its document only."""
    lines = text.split("\n")
    number, begin, last = 0, 0, -1
    while True:
        rest = "\n" * begin + "\n".join(lines[begin:])
        try:
            with placed(rest):
                loader = make(rest)
                for node in nodes(loader, rest):
                    yield number, node, _constructed(loader, node)
                    number += 1
            return
        except ParseError as error:
            if error.line != last:
                yield number, None, error
                number += 1
            last = error.line
            after = range(max(error.line - 1, begin + 1), len(lines))
            begin = next((index for index in after if _NEXT.match(lines[index])), 0)
            if not begin:
                return


def _constructed(loader: Loader, node: yaml.Node) -> object | ParseError:
    try:
        with placed(""):
            value: object = loader.construct_document(node)
            return value
    except ParseError as error:
        return error


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def list_of_lines(objects: Iterable[JSON]) -> str:
    """The objects as a List in JSON. Each object is a line, so that some can be read without the others (Select)."""
    lines = ",\n".join(json.dumps(object_, separators=(",", ":")) for object_ in objects)
    return f"{_LIST_BEGIN}\n{lines}\n{_LIST_END}\n"


def _items_of_lines(text: str) -> list[str] | None:
    """The texts of the items of a `list_of_lines`. None for any other text."""
    begin, end = f"{_LIST_BEGIN}\n", f"\n{_LIST_END}\n"
    if not text.startswith(begin) or not text.endswith(end):
        return None
    return text[len(begin) : -len(end)].split(",\n")


def read_all(
    paths: Iterable[str],
    *,
    empty_lists: bool = False,
    convert: Convert | None = None,
    lenient: bool = False,
    select: Select | None = None,
) -> Read:
    """All objects in files, in folders (their .yaml, .yml and .json files) and on standard input (`-`). A problem of
    one file or document hides no others.

    Lists are taken apart. With `empty_lists`, a list of one kind that has no items is a document, too: it says that
    there are no objects of this kind. `lenient`: keys may occur twice, and tags are ignored. `select` chooses the items
    of a file that `list_of_lines` wrote; other files are read completely.
    """
    named: dict[str, bool] = {}
    for path in paths:
        try:
            found = files_of(path) or [path]
        except OSError:
            found = [path]  # what is wrong with it is said when it is read
        for file in found:
            named[file] = named.get(file, False) or file == path
    read = Read()
    with collection_paused():
        for file, is_named in named.items():
            read += _read_file(file, named=is_named, convert=convert, lenient=lenient, select=select)
    kept = tuple(document for document in read.documents if empty_lists or not document.is_empty_list)
    return replace(read, documents=kept, problems=tuple(_joined(read.problems)))


def _joined(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The problems, with one for all templates of a chart."""
    charts = {problem.file: _chart_of(problem.file) for problem in problems if problem.flaw is Flaw.TEMPLATE}
    seen: set[str] = set()
    for problem in problems:
        chart = charts.get(problem.file, "")
        if chart in seen:
            continue
        if chart:
            seen.add(chart)
            others = len([file for file in charts if charts[file] == chart]) - 1
            more = f" ({others} other files of this chart are templates, too)" if others else ""
            problem = replace(problem, text=f"{_TEMPLATE_TEXT}: run 'helm template {chart}' first{more}")
        yield problem


def _chart_of(file: str) -> str:
    """The folder of the Helm chart that a file belongs to. Empty if there is none."""
    return next((str(folder) for folder in Path(file).parents if (folder / "Chart.yaml").exists()), "")


def _read_file(file: str, *, named: bool, convert: Convert | None, lenient: bool, select: Select | None) -> Read:
    name = name_of(file)
    try:
        text = decode_text(read_bytes(file))
    except IsADirectoryError:
        problem = "no .yaml, .yml or .json file in this folder"
        return Read((), (Problem(Flaw.EMPTY_FOLDER, problem, name),), 1)
    except OSError as error:
        return Read((), (Problem(Flaw.NO_FILE, str(error.strerror), name),), 1)
    except ParseError as error:
        return Read((), (_unreadable(error, name),), 1)
    items = _items_of_lines(text) if select is not None else None
    if select is not None and items is not None:
        return _read_items(Text(name, text), items, select(items))
    return read_text(text, name, named=named, convert=convert, lenient=lenient)


def _read_items(origin: Text, items: Sequence[str], numbers: Iterable[int]) -> Read:
    """Some items of a List of which each is a line, after a line with the beginning of the List."""
    documents: list[Document] = []
    problems: list[Problem] = []
    for number in numbers:
        try:
            value = load(items[number])
        except ParseError as error:
            place = Position(number + 2, error.column)
            problems.append(Problem(Flaw.UNREADABLE, error.problem, origin.file, place))
            continue
        place_of_item = Document({}, f"{origin.file}, item {number + 1}", False, origin, items=(number,))
        for found in _objects(value, place_of_item):
            if isinstance(found, Document):
                documents.append(found)
            else:
                problems.append(found)
    return Read(tuple(documents), tuple(problems), 1)


def read_text(
    text: str, file: str, *, named: bool = True, convert: Convert | None = None, lenient: bool = False
) -> Read:
    """The objects in a YAML stream, or in one JSON document, which is read much faster.

    A document that is not a Kubernetes object is a problem in a file that was `named`. In other files, it is skipped
    with a note.
    """
    origin = Text(file, text)
    values = enumerate(value for _, value in origin.documents) if lenient else origin.values()
    documents: list[Document] = []
    problems: list[Problem] = []
    for number, read in values:
        where = file if number == 0 else f"{file}, document {number + 1}"
        if isinstance(read, ParseError):
            problems.append(_unreadable(read, file))
            continue
        value = convert(read, where) if convert is not None else read
        is_other = value is not None and not _is_object(value)
        if is_other and not named and not lenient:
            click.echo(printable(f"note: {where} is no Kubernetes object: skipped"), err=True)
            continue
        for object_ in _objects(value, Document({}, where, False, origin, number)):
            if isinstance(object_, Document):
                documents.append(object_)
            elif named or object_.flaw is not Flaw.NO_MAPPING:
                problems.append(object_)
    unreadable = [problem for problem in problems if problem.flaw is Flaw.UNREADABLE]
    if unreadable and "{{" in text:
        said = f"{_TEMPLATE_TEXT}: render it first, for example with 'helm template' ({unreadable[0].text})"
        template = replace(unreadable[0], flaw=Flaw.TEMPLATE, text=said)
        problems = [template, *(problem for problem in problems if problem.flaw is not Flaw.UNREADABLE)]
    return Read(tuple(documents), tuple(problems), 1)


def _unreadable(error: ParseError, file: str) -> Problem:
    return Problem(Flaw.UNREADABLE, error.problem, file, Position(error.line, error.column))


def in_namespace(
    documents: Iterable[Document], namespace: str, *, asked: str = ""
) -> tuple[list[Document], tuple[Note, ...]]:
    """The documents. Documents without a namespace get `namespace`, unless it is `default`.

    If a namespace was `asked` for, objects that name another namespace are errors, as for kubectl.
    """
    found: list[Document] = []
    errors: list[Note] = []
    for document in documents:
        metadata = within(document.value, "metadata")
        own = metadata.get("namespace")
        if document.kind not in _CLUSTERED and own and asked and own != asked:
            errors.append(
                Note(
                    f"{document.kind} {document.name}",
                    f"its namespace is not {asked!r}, which -n asks for",
                    document.source,
                )
            )
            continue
        if document.kind not in _CLUSTERED and not own and namespace != "default":
            document = replace(document, value={**document.value, "metadata": {**metadata, "namespace": namespace}})
        found.append(document)
    return found, tuple(errors)


def read_documents(
    paths: Iterable[str], *, empty_lists: bool = False, convert: Convert | None = None, select: Select | None = None
) -> list[Document]:
    """The documents of `read_all`. Raises NotesError for all problems."""
    return _without_problems(read_all(paths, empty_lists=empty_lists, convert=convert, select=select))


def parse(text: str, source: str) -> list[Document]:
    """The objects of a text. Raises NotesError for all problems."""
    return _without_problems(read_text(text, source))


def _without_problems(read: Read) -> list[Document]:
    if read.problems:
        raise NotesError(*(problem.note for problem in read.problems))
    return list(read.documents)


def files_of(path: str) -> list[str]:
    """The YAML and JSON files in a folder, including broken links. A path that is not a folder stands for itself.

    Raises OSError.
    """
    if path == STDIN or not Path(path).is_dir():
        return [path]
    return sorted(str(file) for file in Path(path).rglob("*") if file.suffix in _SUFFIXES and _is_file(file))


def read_bytes(file: str) -> bytes:
    """The content of a file, or of standard input (`-`). Raises OSError."""
    return read_standard_input() if file == STDIN else Path(file).read_bytes()


def name_of(file: str) -> str:
    """How a file is called in messages."""
    return "standard input" if file == STDIN else file


def _is_file(path: Path) -> bool:
    return path.is_file() or (path.is_symlink() and not path.exists())


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("apiVersion"), str) and isinstance(value.get("kind"), str)


def _objects(value: object, place: Document) -> Iterator[Document | Problem]:
    """The objects that a value consists of. `place` has the file and the place of the value."""
    if value is None:
        return
    if not isinstance(value, dict):
        of_mappings = isinstance(value, list) and all(type(element) is dict for element in value) and not place.items
        flaw = Flaw.LIST if of_mappings else Flaw.NO_MAPPING if not place.items else Flaw.NO_ITEMS
        if flaw is Flaw.NO_ITEMS:
            yield _problem(flaw, place, f"an item of a list must be an object, not {json_type(value)}")
        else:
            yield _problem(flaw, place, f"a Kubernetes object is a mapping, not {json_type(value)}")
        return
    kind, items = value.get("kind"), value.get("items")
    if not isinstance(value.get("apiVersion"), str) or not isinstance(kind, str):
        text = "not a Kubernetes object: it lacks apiVersion or kind"
        yield replace(_problem(Flaw.NO_IDENTITY, place, text), kind=str(kind))
    elif kind.endswith("List") and isinstance(items, list):
        if not items and kind != "List":
            yield replace(place, value=value)
        inherited = {"apiVersion": value["apiVersion"], "kind": kind.removesuffix("List")}
        for index, item in enumerate(items):
            whole = {**inherited, **item} if isinstance(item, dict) and inherited["kind"] else item
            source = f"{place.source}, item {index + 1}"
            yield from _objects(whole, replace(place, source=source, items=(*place.items, index)))
    elif kind in _LISTS and items is not None:
        text = f"{kind}: items must be a list, not {json_type(items)}"
        yield replace(_problem(Flaw.NO_ITEMS, place, text), path="items")
    else:
        if (problem := _wrong_metadata(value)) is not None:
            yield _problem(Flaw.NO_NAME, place, f"{kind}: {problem}")
        yield replace(place, value=value)


def _problem(flaw: Flaw, place: Document, text: str) -> Problem:
    return Problem(flaw, text, place.file, place.positions.of(()))


def _wrong_metadata(value: JSON) -> DecodeError | None:
    """Why the object cannot be named."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict | None):
        return DecodeError("metadata", f"must be an object, not {json_type(metadata)}")
    for field in ("name", "generateName", "namespace"):
        found = (metadata or {}).get(field)
        if found is not None and not isinstance(found, str):
            return DecodeError(f"metadata.{field}", f"must be a string, not {json_type(found)}")
    return None
