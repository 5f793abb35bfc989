# SPDX-License-Identifier: Apache-2.0
"""Owners of workloads: the objects that have to be changed instead of what their controllers make of them.

A controller reverts a change of an object that it owns. An owned object that is created again without its owner is an
orphan. So the plan names the owner, and the place of the pod template in it. The labels that tell which template an
object is made from are those of JobSet, KubeRay, the Training Operator and Volcano (as of 2026).
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...kube.api import ApiClient, Kind, NotFoundError, StatusError
from ..documents import Document, each, within
from ..groups import Key, joined, key_of
from ..kinds import KINDS, OF_KUBERNETES, Pods
from ..report import counted, listed
from ..rights import FORBIDDEN
from ..status import Note
from ..world import reduced

JSON = dict[str, Any]

Identity = tuple[str, str, str, str]
"""Group, kind, namespace and name."""

_ROLES: Final = (
    "jobset.sigs.k8s.io/replicatedjob-name",
    "training.kubeflow.org/replica-type",
    "volcano.sh/task-spec",
    "ray.io/group",
)
"""Labels with the part of the owner that an object was made from. The first one counts."""
_RAY_NODE: Final = "ray.io/node-type"
_VERSION: Final = re.compile(r"[a-z0-9.-]+/v[a-z0-9]+")
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""The forms of references to objects that can exist. They become parts of URLs and of commands."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The object whose controller made another object. Its namespace is that of the other object."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """The API group and the kind."""
        return key_of({"apiVersion": self.api_version, "kind": self.kind})

    @property
    def identity(self) -> Identity:
        """The identity of the object."""
        return (*self.key, self.namespace, self.name)

    @property
    def resource(self) -> str:
        """The resource as kubectl takes it: `raycluster.ray.io`."""
        return f"{self.kind.lower()}.{self.key[0]}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def owner_of(document: Document) -> Owner | None:
    """The owner of an object whose kind is not one of Kubernetes'. None if it has no such owner.

    The reference with `controller: true` counts, or else the first one. Whoever creates an object may write anything
    into its references: those to objects that cannot exist are ignored.
    """
    references = each(document.value, "metadata", "ownerReferences")
    others = [
        reference for reference in references if key_of(reference)[0] not in OF_KUBERNETES and _can_exist(reference)
    ]
    others.sort(key=lambda reference: reference.get("controller") is not True)
    if not others:
        return None
    first = others[0]
    return Owner(str(first.get("apiVersion")), str(first.get("kind")), document.namespace, str(first.get("name")))


def _can_exist(reference: JSON) -> bool:
    forms = (("apiVersion", _VERSION), ("kind", _KIND), ("name", _NAME))
    return all(form.fullmatch(str(reference.get(field))) for field, form in forms)


def identity_of(document: Document) -> Identity:
    """The identity of an object."""
    return (*key_of(document.value), document.namespace, document.name.rpartition("/")[2])


def identities(documents: Iterable[Document]) -> set[Identity]:
    """The identities of the documents whose kinds are known to make pods."""
    return {identity_of(document) for document in documents if key_of(document.value) in KINDS}


def places_in(owner: Owner, owned: Document) -> list[str]:
    """The paths of the pod templates in the owner from which the object may have been made: the template that its
    labels name, or all templates of the owner's kind. Empty if the kind is not known.
    """
    known = KINDS.get(owner.key)
    if known is None:
        return []
    labels = within(owned.value, "metadata", "labels")
    role = next((str(labels[name]) for name in _ROLES if name in labels), "")
    role = "head" if labels.get(_RAY_NODE) == "head" else role
    named = [pods for pods in known.pods if pods.role == role and not _has_several(pods)]
    parts = [pods for pods in known.pods if _has_several(pods)]
    chosen = (named or parts or known.pods) if role else known.pods
    return list(dict.fromkeys(_place(pods, role) for pods in chosen))


def _has_several(pods: Pods) -> bool:
    return pods.of.endswith(("[]", "{}"))


def _place(pods: Pods, role: str) -> str:
    """The path of the template, with the item or key that `role` names: `spec.tasks[name=worker].template`."""
    path = pods.of
    if role and path.endswith("[]"):
        path = f"{path[:-2]}[{pods.role}={role}]"
    elif path.endswith("{}"):
        key = role.upper() if role == "ps" else role.capitalize()
        path = f"{path[:-2]}.{key}" if role else f"{path[:-2]}.*"
    return re.sub(r"\{\}", ".*", joined(path, pods.template))


def read_owners(
    client: ApiClient, owned: Sequence[Document], documents: Iterable[Document], where: str
) -> tuple[list[Document], list[str]]:
    """All objects of the kinds that own the objects `owned`, and of the kinds that own these, unless the owner is among
    the documents. Also the resources of the kinds that may not be listed. Kinds that the server does not serve are left
    out. Raises ApiError.
    """
    found: list[Document] = []
    forbidden: list[str] = []
    asked: set[tuple[str, str]] = set()
    present = identities(documents)
    remaining = list(owned)
    while remaining:
        owners = [owner for owner in map(owner_of, remaining) if owner is not None and owner.identity not in present]
        kinds = {(owner.api_version, owner.kind): owner.resource for owner in owners}
        remaining = []
        for (version, kind), resource in kinds.items():
            if (version, kind) in asked:
                continue
            asked.add((version, kind))
            values = _list(client, version, kind)
            if values is None:
                forbidden.append(resource)
            else:
                remaining += [Document(value, where, stored=True) for value in values]
        found += remaining
        present |= identities(remaining)
    return found, forbidden


def _list(client: ApiClient, version: str, kind: str) -> list[JSON] | None:
    """The objects of a kind, none if the server does not serve it. None if listing them is not allowed."""
    try:
        resources = each(client.get_path(f"/apis/{version}"), "resources")
        plural = next((str(resource["name"]) for resource in resources if resource.get("kind") == kind), None)
        return [] if plural is None else list(reduced(client, Kind(version, plural), kind, dict))
    except NotFoundError:
        return []
    except StatusError as error:
        if error.status != FORBIDDEN:
            raise
        return None


def unread_notes(owners: Iterable[Owner], read: Collection[Identity], forbidden: Sequence[str]) -> Iterator[Note]:
    """A note for each kind of owners whose pod templates are not known, with their number and names. The objects of
    `owners` request GPUs; those in `read` were read, and have no pod template.
    """
    kinds: dict[tuple[str, str], list[Owner]] = defaultdict(list)
    for owner in owners:
        kinds[owner.kind, owner.resource].append(owner)
    for (kind, resource), unread in kinds.items():
        names = listed([f"{owner.namespace}/{owner.name}" for owner in unread])
        why = f"listing {resource} is not allowed" if resource in forbidden else "not in the input"
        advice = f". Add them: kubectl get {resource} -A -o yaml"
        if all(owner.identity in read for owner in unread):
            why, advice = "without a pod template", ""
        yield Note(
            "",
            f"{counted(len(unread), kind)} whose objects request GPUs: {names} ({why}). The plan knows only what there"
            f" is of them now{advice}",
        )
