# SPDX-License-Identifier: Apache-2.0
"""Fields that objects use, and that a release does not have, or drops because a feature gate is off.

An object that is stored keeps such a field until it is written without it; the scheduler ignores the field. Each new
object loses it.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ...kube.releases import minor_of
from ...kube.resource import Node, ResourceClaimTemplate
from ...kube.resource.codec import V1, Decoded, encode_claim_spec
from ..lint.form import GATED_FIELDS, GatedField, gate_of
from ..snapshot import encoded
from .difference import Aspect, Difference, Effect
from .sides import Side, Sides

_KEPT: Final = "kept"
_OPAQUE: Final = "parameters"
"""The field with the parameters for a driver, whose fields are not those of Kubernetes."""


def field_differences(objects: Iterable[Decoded], sides: Sides) -> Iterator[Difference]:
    """The differences about the fields of objects, one for each namespace, kind and field."""
    changed = {field for field in GATED_FIELDS if _state(field, sides.now) != _state(field, sides.then)}
    counts: Counter[tuple[str, str, str]] = Counter()
    for object_ in objects if changed else ():  # it takes long to write all objects
        if isinstance(object_, Node):
            continue
        for path in (*_paths(_spec(object_), "spec"), *object_.unread):
            if _gate(path) in changed:
                counts[object_.metadata.namespace or "", type(object_).__name__, path] += 1
    for (namespace, kind, path), count in sorted(counts.items()):
        field = _gate(path)
        assert field is not None
        before, after = _state(field, sides.now), _state(field, sides.then)
        effect = Effect.HELPS if after == _KEPT else Effect.CHANGES
        yield Difference(Aspect.FIELD, effect, f"{kind} {path}", before, after, namespace, count=count)


def _spec(object_: Decoded) -> object:
    """The spec of an object as JSON."""
    if isinstance(object_, ResourceClaimTemplate):
        return {"spec": encode_claim_spec(object_.spec, V1)}
    (value,) = encoded([object_])
    return value["spec"]


def _state(field: GatedField, side: Side) -> str:
    """What the API server of a side does with a field."""
    minor = minor_of(side.release)
    if field.gone is not None and minor >= field.gone:
        return f"was removed in Kubernetes 1.{field.gone}"
    if minor < field.first:
        return f"is known from Kubernetes 1.{field.first} on"
    return _KEPT if side.gates.get(field.name, False) else f"dropped and ignored: {field.name} is off"


@functools.cache
def _gate(path: str) -> GatedField | None:
    return gate_of(path)


def _paths(value: Any, path: str) -> set[str]:
    """The paths of the fields that are set, each once: all elements of a list have the path of the list and `[]`."""
    found: set[str] = set()
    _add_paths(value, path, found)
    return found


def _add_paths(value: Any, path: str, found: set[str]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if item is not None and key != _OPAQUE:
                place = f"{path}.{key}"
                found.add(place)
                _add_paths(item, place, found)
    elif isinstance(value, list):
        for item in value:
            _add_paths(item, f"{path}[]", found)
