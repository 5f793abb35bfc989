# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON documents from files, folders and standard input, strictly read."""

import contextlib
import json
import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..command import InputError
from ..resource.codec import json_type

JSON = dict[str, Any]

STDIN = "-"
_SUFFIXES = {".yaml", ".yml", ".json"}


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it was: `pods.yaml, document 2`."""

    value: JSON
    source: str

    @property
    def kind(self) -> str:
        return str(self.value.get("kind", ""))

    @property
    def name(self) -> str:
        """`namespace/name`, or the name alone."""
        meta = self.value.get("metadata") or {}
        namespace, name = meta.get("namespace"), str(meta.get("name") or meta.get("generateName") or "(no name)")
        return f"{namespace}/{name}" if namespace else name

    def __str__(self) -> str:
        return f"{self.source}: {self.kind} {self.name}"


def read_documents(paths: Iterable[str]) -> list[Document]:
    """All objects in files, in folders (their .yaml, .yml and .json files) and on standard input (`-`).

    Lists are taken apart. Raises InputError.
    """
    return [document for path in paths for text, source in _texts(path) for document in parse(text, source)]


def parse(text: str | bytes, source: str) -> list[Document]:
    """The objects in a YAML stream, or in one JSON document, which is read much faster. Raises InputError."""
    documents: list[Document] = []
    if text.lstrip()[:1] in ("{", b"{"):
        with contextlib.suppress(json.JSONDecodeError):  # YAML may begin so, too
            return list(_objects(json.loads(text, object_pairs_hook=partial(_mapping, source)), source))
    try:
        for number, value in enumerate(yaml.load_all(text, _StrictLoader), start=1):
            documents += _objects(value, source if number == 1 else f"{source}, document {number}")
    except yaml.YAMLError as error:
        raise InputError(f"{source}: {' '.join(str(error).split())}") from None
    return documents


def _texts(path: str) -> Iterator[tuple[bytes, str]]:
    if path == STDIN:
        yield sys.stdin.buffer.read(), "standard input"
        return
    files = (
        sorted(one for one in Path(path).rglob("*") if one.suffix in _SUFFIXES) if Path(path).is_dir() else [Path(path)]
    )
    if not files:
        raise InputError(f"{path}: no .yaml, .yml or .json file in this folder")
    for file in files:
        try:
            yield file.read_bytes(), str(file)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}") from None


def _objects(value: object, source: str) -> Iterator[Document]:
    if value is None:
        return
    if not isinstance(value, dict):
        raise InputError(f"{source}: a Kubernetes object is a mapping, not {json_type(value)}")
    if not isinstance(value.get("apiVersion"), str) or not isinstance(value.get("kind"), str):
        raise InputError(f"{source}: not a Kubernetes object: it lacks apiVersion or kind")
    if value["kind"].endswith("List") and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            inherited = {"apiVersion": value["apiVersion"], "kind": value["kind"].removesuffix("List")}
            whole = {**inherited, **item} if isinstance(item, dict) and inherited["kind"] else item
            yield from _objects(whole, f"{source}, item {index + 1}")
        return
    yield Document(value, source)


def _mapping(source: str, pairs: list[tuple[str, Any]]) -> JSON:
    """A JSON object without a key twice."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{source}: key {twice!r} is there twice")
    return mapping


class _StrictLoader(yaml.CSafeLoader):
    """Refuses a mapping that has a key twice, as the API server does; times stay text."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key, str):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is there twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_time(self, node: Any) -> str:
        """Times as they were written."""
        return str(node.value)


_StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", _StrictLoader.construct_time)
