# SPDX-License-Identifier: Apache-2.0
"""The pods of an object: the one reader of workloads, for fit, lint and migrate.

For a kind of the table `kinds`, these are the pods that its controller makes. For another kind, pod templates are found
by their shape. Each group of equal pods tells where its parts are in the object, for lines and columns.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..kube.resource.codec import DecodeError, json_type
from . import kinds
from .documents import JSON, within
from .kinds import KINDS, Number, Pods

_STEP: Final = re.compile(r"([^.\[{]+)(\[\]|\{\})?")
_NOT_SEARCHED: Final = ("metadata", "status")
MOST_COPIES: Final = 1 << 31

Key = tuple[str, str]
"""The API group, without the version, and the kind."""

Elsewhere = Callable[[Key, str, str], JSON | str]
"""(key, namespace, name) -> an object that is not among the files, or a text why there is none."""
NOT_AMONG_FILES: Final = "is not among the files"
NOT_SAVED: Final = "the files of --slices have no objects of this kind"
"""Ends the text if files with the pods of a cluster lack a kind of which the cluster may have objects."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """`count` equal pods of an object. `path` is that of their spec, and `moved` has the places of its parts that are
    elsewhere in the object: `{"containers[0]": "spec.predictor.model"}`.

    `role` tells groups of an object apart. `each_node`: one pod on each node that matches, instead of `count`. Groups
    of one `stage` are there at once, after those of other stages have ended; groups without a stage last. `templates`
    are ResourceClaimTemplates that are made with the pods. `notes` and `unknown` are facts for `Verdict`. `counted` is
    the path of the number of pods.
    """

    path: str
    spec: JSON
    metadata: JSON = field(default_factory=dict)
    count: int = 1
    role: str = ""
    moved: Mapping[str, str] = field(default_factory=dict)
    each_node: bool = False
    stage: str = ""
    templates: tuple[JSON, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    counted: str = ""

    def place(self, path: str) -> str:
        """The path in the object of a path in the spec."""
        for part in sorted(self.moved, key=len, reverse=True):
            if path == part or path.startswith((f"{part}.", f"{part}[")):
                return self.moved[part] + path.removeprefix(part)
        return joined(self.path, path)


@dataclass(frozen=True, slots=True)
class ObjectPods:
    """The pods of an object, and what of the object was not read (texts about the object)."""

    groups: tuple[PodGroup, ...] = ()
    unknown: tuple[str, ...] = ()


def key_of(value: JSON) -> Key:
    """The API group and the kind of an object."""
    version = str(value.get("apiVersion") or "")
    return version.partition("/")[0] if "/" in version else "", str(value.get("kind") or "")


def only_files(_key: Key, _namespace: str, _name: str) -> str:
    """The Elsewhere if there are only files."""
    return NOT_AMONG_FILES


class ReferencedObjects:
    """Objects to which workloads refer, such as a TrainingRuntime: `values`, and objects from elsewhere."""

    def __init__(self, values: Iterable[JSON] = (), elsewhere: Elsewhere = only_files) -> None:
        self._values: dict[tuple[Key, str, str], JSON] = {}
        self._elsewhere = elsewhere
        self._asked: dict[tuple[Key, str, str], JSON | str] = {}
        self.used: set[int] = set()
        """The ids of the values that were found."""
        for value in values:
            metadata = within(value, "metadata")
            in_no_namespace = "Cluster" in key_of(value)[1]
            where = "" if in_no_namespace else str(metadata.get("namespace") or "default")
            self._values.setdefault((key_of(value), where, str(metadata.get("name") or "")), value)

    def find(self, key: Key, namespace: str, name: str) -> JSON | None:
        """The object, None if it is not known. `namespace` is empty for kinds that are in none. Raises the exceptions
        of `elsewhere`.
        """
        found = self._values.get((key, namespace, name))
        if found is not None:
            self.used.add(id(found))
            return found
        there = self._look_elsewhere(key, namespace, name)
        return None if isinstance(there, str) else there

    def reason(self, key: Key, namespace: str, name: str) -> str:
        """Why the object is not known, as the end of a sentence about it."""
        there = self._look_elsewhere(key, namespace, name)
        return there if isinstance(there, str) else NOT_AMONG_FILES

    def _look_elsewhere(self, key: Key, namespace: str, name: str) -> JSON | str:
        place = (key, namespace, name)
        if place not in self._asked:
            self._asked[place] = self._elsewhere(*place) if name else NOT_AMONG_FILES
        return self._asked[place]


@dataclass(frozen=True, slots=True)
class FormPart:
    """The part of an object that a form of `podforms` reads: `value` at `path`, of which there are `count`."""

    value: JSON
    path: str
    count: int
    role: str
    whole: JSON
    library: ReferencedObjects
    each_node: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of the whole object."""
        return str(within(self.whole, "metadata").get("namespace") or "default")


Form = Callable[[FormPart], Iterable[PodGroup]]


def pods_of(value: JSON, library: ReferencedObjects, forms: Mapping[str, Form]) -> ObjectPods:
    """The pods of an object. Raises DecodeError, if fields are of the wrong type or missing."""
    known = KINDS.get(key_of(value))
    if known is None:
        return _of_unknown_kind(value)
    groups = [group for pods in known.pods for group in _groups(value, pods, library, forms)]
    if key_of(value)[0] in kinds.OF_KUBERNETES:
        return ObjectPods(tuple(groups))
    read = [where for pods in known.pods for where in _templates(value, pods)]
    others = [found for found in by_shape(value) if not any(_is_in(found.path, place) for place in read)]
    if not groups and not others:
        return ObjectPods((), () if read else ("no pod template is in it",))
    return ObjectPods((*groups, *others))


def _templates(value: JSON, pods: Pods) -> Iterator[str]:
    """The paths of the templates of which the table knows, also of those of which no copy is wanted."""
    for owner, path, _ in _owners(value, pods.of, ""):
        template, where = _template(owner, path, pods)
        if template is not None:
            yield where


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith((f"{place}.", f"{place}[")) or not place


def _of_unknown_kind(value: JSON) -> ObjectPods:
    group, kind = key_of(value)
    if group in kinds.WITHOUT_PODS or kind in kinds.KINDS_WITHOUT_PODS.get(group, ()):
        return ObjectPods()
    found = tuple(by_shape(value))
    nothing = "its kind is not known, and no pod template is in it: it was not evaluated"
    return ObjectPods(found, () if found else (nothing,))


def by_shape(value: JSON) -> Iterator[PodGroup]:
    """The pod templates in an object of any kind: mappings whose `containers` all have `name` and `image`."""
    said = "its kind is not known, and so the number of its pods is not: one pod is evaluated"
    if key_of(value) in KINDS:
        said = "the fields of its kind that have this pod template are not known: one pod is evaluated"
    parts = {name: field for name, field in value.items() if name not in _NOT_SEARCHED}
    for path, spec, around in _shapes(parts, "", value):
        yield PodGroup(path, spec, within(around, "metadata"), role=path, stage=path or ".", unknown=(said,))


def _shapes(value: object, path: str, around: JSON) -> Iterator[tuple[str, JSON, JSON]]:
    """Path, spec, and what the spec is in."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _shapes(item, f"{path}[{index}]", around)
    elif isinstance(value, dict):
        containers = value.get("containers")
        if isinstance(containers, list) and containers and all(_is_container(container) for container in containers):
            yield path, value, around
            return
        for name, item in value.items():
            yield from _shapes(item, joined(path, name), value)


def _is_container(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("image"), str)


def _groups(value: JSON, pods: Pods, library: ReferencedObjects, forms: Mapping[str, Form]) -> Iterator[PodGroup]:
    owners = list(_owners(value, pods.of, ""))
    if not owners and not pods.optional and not pods.of.endswith(("[]", "{}")):
        raise _missing(joined(pods.of, pods.template), pods)
    for owner, path, name in owners:
        template, where = _template(owner, path, pods)
        if template is None:
            if pods.optional:
                continue
            raise _missing(where, pods)
        count = 1
        for number in pods.copies:
            count *= _number(value, owner, path, number)
        role = owner.get(pods.role) if pods.role in owner else pods.role or name
        if count:
            part = FormPart(template, where, min(count, MOST_COPIES), str(role), value, library, pods.each_node)
            counted = _path(path, pods.copies[0]) if pods.copies else where
            yield from (replace(group, counted=counted) for group in forms[pods.form](part))


def _path(path: str, number: Number) -> str:
    return number.path[1:] if number.path.startswith("/") else joined(path, number.path)


def _missing(path: str, pods: Pods) -> DecodeError:
    return DecodeError(joined(path, "spec") if pods.form == "template" else path, "is missing")


def _owners(value: JSON, path: str, at: str) -> Iterator[tuple[JSON, str, str]]:
    """The mappings at a path of the table, with their paths, and the key or the number of the last one."""
    found: list[tuple[object, str, str]] = [(value, at, "")]
    for name, several in _STEP.findall(path):
        below = [
            (element[name], joined(where, name), key)
            for element, where, key in found
            if isinstance(element, dict) and element.get(name) is not None
        ]
        if several:
            below = [inner for element, where, _ in below for inner in _each(element, where, several)]
        found = below
    for element, where, key in found:
        if not isinstance(element, dict):
            raise DecodeError(where, f"must be an object, not {json_type(element)}")
        yield element, where, key


def _each(value: object, path: str, several: str) -> Iterator[tuple[object, str, str]]:
    if several == "[]" and isinstance(value, list):
        yield from ((element, f"{path}[{index}]", str(index)) for index, element in enumerate(value))
    elif several == "{}" and isinstance(value, dict):
        yield from ((element, f"{path}.{name}", name) for name, element in value.items())
    else:
        raise DecodeError(path, f"must be {'a list' if several == '[]' else 'an object'}, not {json_type(value)}")


def _template(owner: JSON, path: str, pods: Pods) -> tuple[JSON | None, str]:
    """The values that the form reads, with their paths. None if it is missing."""
    for template in filter(None, (pods.template, pods.instead)):
        found = field_at(owner, template)
        if found is not None:
            if not isinstance(found, dict):
                raise DecodeError(joined(path, template), f"must be an object, not {json_type(found)}")
            return found, joined(path, template)
    return (None, joined(path, pods.template)) if pods.template else (owner, path)


def _number(value: JSON, owner: JSON, path: str, number: Number) -> int:
    root, start, name = (value, "", number.path[1:]) if number.path.startswith("/") else (owner, path, number.path)
    found = whole_number(root, name, number.default, start)
    if number.least:
        found = max(found, whole_number(root, number.least, 0, start))
    if number.most:
        found = min(found, whole_number(root, number.most, MOST_COPIES, start))
    return max(0, found + number.plus)


def whole_number(value: JSON, path: str, default: int, at: str = "") -> int:
    """The number at a path, `default` if there is none. Raises DecodeError for another value; `at` is the path of
    `value`.
    """
    found = field_at(value, path)
    if found is None:
        return default
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        raise DecodeError(joined(at, path), f"must be a whole number, not {json_type(found)}")
    if found < 0:
        raise DecodeError(joined(at, path), "must not be less than 0")
    return found


def field_at(value: Any, path: str) -> Any:
    """The value at a path of mappings, None if there is none."""
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def joined(path: str, more: str) -> str:
    """Two paths as one."""
    return f"{path}{more}" if more.startswith("[") or not path or not more else f"{path}.{more}"


def merged(base: JSON, more: JSON) -> JSON:
    """Two values as a strategic merge patch joins them: mappings by key, lists of named items by name, other lists not
    at all.
    """
    found = dict(base)
    for name, value in more.items():
        old = found.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            found[name] = merged(old, value)
        elif isinstance(old, list) and _is_named(old) and _is_named(value):
            known = {element["name"]: element for element in old}
            known |= {element["name"]: merged(known.get(element["name"], {}), element) for element in value}
            found[name] = list(known.values())
        elif value is not None:
            found[name] = value
    return found


def _is_named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(element, dict) and "name" in element for element in value)
    )
