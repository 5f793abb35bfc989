# SPDX-License-Identifier: Apache-2.0
"""Validation that all kinds share: metadata.

Follows k8s.io/apimachinery/pkg/api/validation/objectmeta.go.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from .. import field_errors as errors
from .. import names
from ..field_errors import FieldError
from ..objects import Object

ANNOTATIONS_BYTES: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = {"orphan", "foregroundDeletion", "kubernetes"}
_NAME_REQUIRED: Final = "name or generateName is required"

NameProblems = Callable[[str, bool], Iterable[str]]


def metadata_problems(
    meta: Object, *, namespaced: bool, name_problems: NameProblems, path: str = "metadata"
) -> Iterator[FieldError]:
    """Yield the problems of an object's metadata."""
    if "generateName" in meta:
        for problem in name_problems(meta["generateName"], True):
            yield errors.invalid(f"{path}.generateName", meta["generateName"], problem)
    name = meta.get("name", "")
    if not name:
        yield errors.required(f"{path}.name", _NAME_REQUIRED)
    else:
        for problem in name_problems(name, False):
            yield errors.invalid(f"{path}.name", name, problem)
    yield from _namespace_problems(meta, namespaced, path)
    yield from label_problems(meta.get("labels"), f"{path}.labels")
    yield from annotation_problems(meta.get("annotations"), f"{path}.annotations")
    yield from _owner_problems(meta.get("ownerReferences", ()), f"{path}.ownerReferences")
    for index, finalizer in enumerate(meta.get("finalizers", ())):
        yield from _finalizer_problems(finalizer, f"{path}.finalizers[{index}]")


def _namespace_problems(meta: Object, namespaced: bool, path: str) -> Iterator[FieldError]:
    namespace = meta.get("namespace", "")
    if namespaced and not namespace:
        yield errors.required(f"{path}.namespace")
    elif namespaced:
        for problem in names.label_problems(namespace):
            yield errors.invalid(f"{path}.namespace", namespace, problem)
    elif namespace:
        yield errors.forbidden(f"{path}.namespace", "not allowed on this type")


def label_problems(labels: Any, path: str) -> Iterator[FieldError]:
    """Yield the problems of a map of labels."""
    for key, value in (labels or {}).items():
        for problem in names.label_key_problems(key):
            yield errors.invalid(path, key, problem)
        for problem in names.label_value_problems(value):
            yield errors.invalid(path, value, problem)


def annotation_problems(annotations: Any, path: str) -> Iterator[FieldError]:
    """Yield the problems of a map of annotations."""
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key.encode()) + len(value.encode())
        for problem in names.label_key_problems(key.lower()):
            yield errors.invalid(path, key, problem)
    if size > ANNOTATIONS_BYTES:
        yield errors.too_long(path, ANNOTATIONS_BYTES)


def _owner_problems(owners: Iterable[Object], path: str) -> Iterator[FieldError]:
    for owner in owners:
        group, slash, version = owner.get("apiVersion", "").rpartition("/")
        if not version or (slash and not group):
            yield errors.invalid(f"{path}.apiVersion", owner.get("apiVersion", ""), "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not owner.get(field):
                yield errors.invalid(f"{path}.{field}", owner.get(field, ""), "must not be empty")


def _finalizer_problems(finalizer: str, path: str) -> Iterator[FieldError]:
    for problem in names.label_key_problems(finalizer):
        yield errors.invalid(path, finalizer, problem)
    if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
        text = "name is neither a standard finalizer name nor is it fully qualified"
        yield errors.invalid(path, finalizer, text)


def metadata_update_problems(meta: Object, old: Object) -> Iterator[FieldError]:
    """Yield the problems of a change of metadata."""
    if old.get("deletionTimestamp"):
        added = [name for name in meta.get("finalizers", ()) if name not in old.get("finalizers", ())]
        if added:
            quoted = ", ".join(f'"{name}"' for name in added)
            text = "no new finalizers can be added if the object is being deleted, found new finalizers"
            yield errors.forbidden("metadata.finalizers", f"{text} []string{{{quoted}}}")
    if meta.get("generation", 0) < old.get("generation", 0):
        yield errors.invalid("metadata.generation", meta.get("generation", 0), "must not be decremented")
    for field in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if meta.get(field) != old.get(field):
            yield errors.invalid(f"metadata.{field}", meta.get(field), "field is immutable")
