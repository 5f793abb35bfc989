# SPDX-License-Identifier: Apache-2.0
"""The file, line and column of a mistake in an object."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..command import InputError
from ..resource.codec import DecodeError
from .documents import JSON, Document
from .lint.source import Source, parse, resolve
from .workload import DocumentError


@contextmanager
def with_places() -> Iterator[None]:
    """Turns a DocumentError into an InputError that names file, line and column of each mistake."""
    try:
        yield
    except DocumentError as error:
        raise InputError("\n".join(located(one, problem) for one, problem in error.problems)) from None


def located(document: Document, problem: DecodeError) -> str:
    """The problem with file, line and column where these can be told."""
    for one in parse(document.text, document.file) if document.text else ():
        if isinstance(one, Source) and one.kind == document.kind and _names(one.value) == _names(document.value):
            place = one.positions.of(resolve(one.value, problem.path)[0])
            return f"{document.file}:{place.line}:{place.column}: {document.kind} {document.name}: {problem}"
    return f"{document}: {problem}"


def _names(value: JSON) -> tuple[object, object]:
    metadata = value.get("metadata")
    return (metadata.get("name"), metadata.get("generateName")) if isinstance(metadata, dict) else (None, None)
