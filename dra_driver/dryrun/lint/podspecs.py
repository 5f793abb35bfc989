# SPDX-License-Identifier: Apache-2.0
"""What pods, and what makes pods, say about claims. Nothing else of them is read: that is for others to check."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ...resource.codec import Fields
from ..documents import JSON
from .mend import STAND_IN, decode_all
from .source import Source

_POD_SPECS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("v1", "Pod"): ("spec",),
    ("v1", "PodTemplate"): ("template", "spec"),
    ("v1", "ReplicationController"): ("spec", "template", "spec"),
    ("apps/v1", "Deployment"): ("spec", "template", "spec"),
    ("apps/v1", "ReplicaSet"): ("spec", "template", "spec"),
    ("apps/v1", "StatefulSet"): ("spec", "template", "spec"),
    ("apps/v1", "DaemonSet"): ("spec", "template", "spec"),
    ("batch/v1", "Job"): ("spec", "template", "spec"),
    ("batch/v1", "CronJob"): ("spec", "jobTemplate", "spec", "template", "spec"),
}
_OLD_FORM: Final = "source"
_STAND_INS: Final = {"name": STAND_IN}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of resourceClaims: a name in the pod for a claim, or for a claim made from a template."""

    path: str
    name: str
    claim: str
    template: str

    @property
    def kind(self) -> str:
        """The kind that it refers to."""
        return "ResourceClaim" if self.claim else "ResourceClaimTemplate"

    @property
    def field(self) -> str:
        """The path of the reference."""
        return f"{self.path}.{'resourceClaimName' if self.claim else 'resourceClaimTemplateName'}"


@dataclass(frozen=True, slots=True)
class Use:
    """An entry of a container's resources.claims. `request` is empty for all of the claim."""

    container: str
    path: str
    name: str
    request: str


@dataclass(frozen=True, slots=True)
class PodSpec:
    """The claims of a pod and their uses; `problems` are malformed entries, by path."""

    claims: tuple[PodClaim, ...]
    uses: tuple[Use, ...]
    problems: tuple[tuple[str, str], ...]


def is_workload(source: Source) -> bool:
    """Whether the object is a pod or makes some."""
    return (source.api_version, source.kind) in _POD_SPECS


def read_pod_spec(source: Source) -> PodSpec | None:
    """The pod spec of the object, None when it has none."""
    steps = _POD_SPECS.get((source.api_version, source.kind), ())
    spec: Any = source.value if steps else None
    for step in steps:
        spec = spec.get(step) if isinstance(spec, dict) else None
    if not isinstance(spec, dict):
        return None
    problems: list[tuple[str, str]] = []
    path = ".".join(steps)
    claims = [
        PodClaim(place, *decoded)
        for place, value in _items(spec, "resourceClaims", path)
        if (decoded := _decoded(value, place, _decode_claim, problems)) is not None
    ]
    uses = [
        Use(container, place, *names)
        for container, place, value in _uses(spec, path)
        if (names := _decoded(value, place, _decode_use, problems)) is not None
    ]
    return PodSpec(tuple(claims), tuple(uses), tuple(problems))


def _uses(spec: JSON, path: str) -> Iterator[tuple[str, str, Any]]:
    for field in ("initContainers", "containers"):
        for container, value in _items(spec, field, path):
            resources = value.get("resources") if isinstance(value, dict) else None
            if isinstance(resources, dict):
                for place, use in _items(resources, "claims", f"{container}.resources"):
                    yield container, place, use


def _items(value: JSON, field: str, path: str) -> Iterator[tuple[str, Any]]:
    """The items of a list with their paths; none where there is no list."""
    found = value.get(field)
    for index, item in enumerate(found if isinstance(found, list) else []):
        yield f"{path}.{field}[{index}]", item


def _decoded(value: Any, path: str, decode: Callable[[Fields], T], problems: list[tuple[str, str]]) -> T | None:
    """The decoded entry; None when it has no name to go by. Notes what is wrong with it."""
    form = decode_all({"entry": value}, lambda wrapped: decode(Fields(wrapped).required_object("entry")), _STAND_INS)
    problems += [(path + found.path.removeprefix("entry"), found.problem) for found in form.errors]
    return None if form.is_mended("entry.name") else form.decoded


def _decode_claim(fields: Fields) -> tuple[str, str, str]:
    if _OLD_FORM in fields:
        raise fields.error(_OLD_FORM, "went away in Kubernetes 1.31: move what is in it one level up, beside 'name'")
    decoded = (
        fields.required_text("name"),
        fields.text("resourceClaimName"),
        fields.text("resourceClaimTemplateName"),
    )
    fields.finish()
    return decoded


def _decode_use(fields: Fields) -> tuple[str, str]:
    decoded = fields.required_text("name"), fields.text("request")
    fields.finish()
    return decoded
