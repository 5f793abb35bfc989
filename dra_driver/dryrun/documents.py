# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON documents from files, folders and standard input, strictly read."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ..command import InputError
from ..parsing import ParseError, decode_text, load_all
from ..resource.codec import json_type
from ..streams import printable, read_standard_input

JSON = dict[str, Any]

STDIN = "-"
_SUFFIXES = {".yaml", ".yml", ".json"}


def within(value: object, *path: str) -> dict[str, Any]:
    """The mapping at a path of mappings, an empty one if there is none."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def each(value: object, *path: str) -> list[dict[str, Any]]:
    """The mappings in the list at a path of mappings, none if there is no list."""
    found = within(value, *path[:-1]).get(path[-1])
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it was: `pods.yaml, document 2`. `stored`: the cluster has it.

    `text` is all that `file` holds.
    """

    value: JSON
    source: str
    stored: bool = False
    file: str = ""
    text: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def kind(self) -> str:
        return str(self.value.get("kind", ""))

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

    def __str__(self) -> str:
        return f"{self.source}: {self.kind} {self.name}"


Convert = Callable[[object, str], object]
"""(value, source) -> the value, or the object that it stands for."""


def read_documents(
    paths: Iterable[str], *, empty_lists: bool = False, convert: Convert | None = None
) -> list[Document]:
    """All objects in files, in folders (their .yaml, .yml and .json files) and on standard input (`-`).

    Lists are taken apart. With `empty_lists`, a list of one kind that has no items is a document, too: it says that
    there are no objects of this kind. Raises InputError.
    """
    return [
        document
        for path in paths
        for data, source in _texts(path)
        for document in parse(data, source, named=source in (path, name_of(path)), convert=convert)
        if empty_lists or not document.is_empty_list
    ]


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


def in_namespace(documents: Iterable[Document], namespace: str, *, asked: str = "") -> list[Document]:
    """The documents, in `namespace` where they name none; `default` goes without saying.

    Raises InputError, as kubectl does, for one that names another namespace than the one that was `asked` for.
    """
    found = []
    for one in documents:
        metadata = within(one.value, "metadata")
        own = metadata.get("namespace")
        if one.kind not in _CLUSTERED and own and asked and own != asked:
            raise InputError(f"{one}: its namespace is not {asked!r}, which -n asks for")
        if one.kind not in _CLUSTERED and not own and namespace != "default":
            one = replace(one, value={**one.value, "metadata": {**metadata, "namespace": namespace}})
        found.append(one)
    return found


def parse(text: str | bytes, source: str, *, named: bool = True, convert: Convert | None = None) -> list[Document]:
    """The objects in a YAML stream, or in one JSON document, which is read much faster. Raises InputError.

    What is no Kubernetes object is an error in a file that was `named`, and skipped with a note in others.
    """
    try:
        text = decode_text(text) if isinstance(text, bytes) else text
        values = load_all(text)
    except ParseError as error:
        raise InputError(f"{source}:{error}") from None
    documents: list[Document] = []
    for number, read in enumerate(values, start=1):
        where = source if number == 1 else f"{source}, document {number}"
        value = convert(read, where) if convert is not None else read
        if not named and value is not None and not _is_object(value):
            click.echo(printable(f"note: {where} is no Kubernetes object: skipped"), err=True)
            continue
        documents += _objects(value, where)
    return [replace(one, file=source, text=text) for one in documents]


def files_of(path: str) -> list[str]:
    """The files that a path stands for: the YAML and JSON files in a folder, also links that lead nowhere; else itself.

    Raises OSError.
    """
    if path == STDIN or not Path(path).is_dir():
        return [path]
    return sorted(str(one) for one in Path(path).rglob("*") if one.suffix in _SUFFIXES and _is_file(one))


def read_bytes(file: str) -> bytes:
    """What a file holds, or standard input (`-`). Raises OSError."""
    return read_standard_input() if file == STDIN else Path(file).read_bytes()


def name_of(file: str) -> str:
    """How a file is called in messages."""
    return "standard input" if file == STDIN else file


def _texts(path: str) -> Iterator[tuple[bytes, str]]:
    file = path
    try:
        files = files_of(path)
        for file in files:
            yield read_bytes(file), name_of(file)
    except OSError as error:
        raise InputError(f"{name_of(file)}: {error.strerror}") from None
    if not files:
        raise InputError(f"{path}: no .yaml, .yml or .json file in this folder")


def _is_file(path: Path) -> bool:
    return path.is_file() or (path.is_symlink() and not path.exists())


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("apiVersion"), str) and isinstance(value.get("kind"), str)


def _objects(value: object, source: str) -> Iterator[Document]:
    if value is None:
        return
    if not isinstance(value, dict):
        raise InputError(f"{source}: a Kubernetes object is a mapping, not {json_type(value)}")
    if not isinstance(value.get("apiVersion"), str) or not isinstance(value.get("kind"), str):
        raise InputError(f"{source}: not a Kubernetes object: it lacks apiVersion or kind")
    if value["kind"].endswith("List") and isinstance(value.get("items"), list):
        if not value["items"] and value["kind"] != "List":
            yield Document(value, source)
        for index, item in enumerate(value["items"]):
            inherited = {"apiVersion": value["apiVersion"], "kind": value["kind"].removesuffix("List")}
            whole = {**inherited, **item} if isinstance(item, dict) and inherited["kind"] else item
            yield from _objects(whole, f"{source}, item {index + 1}")
        return
    _check_metadata(value, source)
    yield Document(value, source)


def _check_metadata(value: JSON, source: str) -> None:
    """Refuse what cannot be named."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict | None):
        raise InputError(f"{source}: {value['kind']}: metadata must be an object, not {json_type(metadata)}")
    for field in ("name", "generateName", "namespace"):
        found = (metadata or {}).get(field)
        if found is not None and not isinstance(found, str):
            raise InputError(f"{source}: {value['kind']}: metadata.{field} must be a string, not {json_type(found)}")
