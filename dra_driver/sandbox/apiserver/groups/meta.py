# SPDX-License-Identifier: Apache-2.0
"""Validation that all kinds share: metadata."""

from collections.abc import Iterator
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..objects import Object

ANNOTATIONS_BYTES: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = {"orphan", "foregroundDeletion", "kubernetes"}


def metadata_problems(meta: Object, *, namespaced: bool, name_rule: names.NameRule) -> Iterator[FieldError]:
    """Yield the problems of an object's metadata."""
    if not meta.get("name"):
        yield errors.required("metadata.name", "name or generateName is required")
    else:
        yield from name_rule.problems(meta["name"], "metadata.name")
    if meta.get("namespace") and not namespaced:
        yield errors.forbidden("metadata.namespace", "not allowed on this type")
    yield from label_problems(meta.get("labels"), "metadata.labels")
    yield from annotation_problems(meta.get("annotations"), "metadata.annotations")
    for index, finalizer in enumerate(meta.get("finalizers", ())):
        if finalizer not in _STANDARD_FINALIZERS and ("/" not in finalizer or not names.LABEL_KEY.allows(finalizer)):
            yield errors.invalid(f"metadata.finalizers[{index}]", finalizer, "must be DOMAIN/NAME")


def label_problems(labels: Any, path: str) -> Iterator[FieldError]:
    """Yield the problems of a map of labels."""
    for key, value in (labels or {}).items():
        yield from names.LABEL_KEY.problems(key, path)
        yield from names.LABEL_VALUE.problems(value, path)


def annotation_problems(annotations: Any, path: str) -> Iterator[FieldError]:
    """Yield the problems of a map of annotations."""
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key.encode()) + len(value.encode())
        yield from names.LABEL_KEY.problems(key.lower(), path)
    if size > ANNOTATIONS_BYTES:
        yield errors.too_long(path, ANNOTATIONS_BYTES)


def metadata_update_problems(meta: Object, old: Object) -> Iterator[FieldError]:
    """Yield the problems of a change of metadata."""
    if old.get("deletionTimestamp"):
        added = [name for name in meta.get("finalizers", ()) if name not in old.get("finalizers", ())]
        if added:
            text = f"no new finalizers can be added if the object is being deleted, found {', '.join(added)}"
            yield errors.forbidden("metadata.finalizers", text)
    if meta.get("uid") != old.get("uid"):
        yield errors.invalid("metadata.uid", meta.get("uid"), "field is immutable")
