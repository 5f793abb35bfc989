# SPDX-License-Identifier: Apache-2.0
"""The input of `migrate`: the objects in files, or the objects of a cluster that concern GPUs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from ...kube.api import ApiClient
from ...kube.kinds import CONFIG_MAPS, NODES, kind_named
from ...kube.resource.codec import DecodeError, Fields
from ...process.command import InputError
from ...scheduler.pods import PodDecoder, form_errors
from ...scheduler.pods.decode import decode_cluster_node
from ..documents import Document, each, in_namespace, read_all, within
from ..groups import ReferencedObjects
from ..inventory import kinds
from ..reduction import reduced_object
from ..rights import Needs, advice
from ..sources import Place
from ..status import Note, NotesError
from ..world import read_around
from .configs import is_configuration
from .owners import read_owners
from .programs import BARE, programs
from .workloads import MACHINES, groups_of, requests_gpus

_KINDS: Final = {
    kind: kind_named(version, kind)
    for version, kinds_of_version in (
        ("apps/v1", ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")),
        ("batch/v1", ("Job", "CronJob")),
        ("v1", ("PodTemplate", "ReplicationController")),
        ("kubevirt.io/v1", ("KubeVirt", *MACHINES)),
    )
    for kind in kinds_of_version
}
"""What is read of a cluster besides the objects of its world."""
_OF_ADD_ONS: Final = {
    "ClusterPolicy": ("nvidia.com/v1",),
    "GPUCluster": ("nvidia.com/v1alpha1",),
    "ClusterQueue": ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1"),
}
"""What is read if the server has one of the versions: the settings of the GPU Operator, and Kueue's quotas."""
_OF_OTHERS: Final = ("DeviceClass", "ResourceSlice")
NEEDS: Final = Needs(whole_pods=True)
"""What the command reads of a cluster besides devices."""


@dataclass(frozen=True, slots=True)
class MigrationInput:
    """The objects that were read. `errors` are about objects that cannot be used, and `unread` says what was not read.

    `forbidden` are resources of owners (`raycluster.ray.io`) that may not be listed.
    """

    documents: Sequence[Document]
    errors: tuple[Note, ...] = ()
    unread: tuple[Note, ...] = ()
    forbidden: Sequence[str] = ()


def read_files(files: Sequence[str], namespace: str) -> MigrationInput:
    """The objects of files. A configuration has the name of its file. Raises NotesError if there are only errors."""
    read = read_all(files, empty_lists=True, convert=_as_object)
    documents, errors = in_namespace(read.documents, namespace)
    errors = (*(problem.note for problem in read.problems), *errors)
    library = ReferencedObjects(document.value for document in documents)
    usable = []
    for document in documents:
        problems = list(_problems(document, library))
        errors += tuple(document.note(str(problem), problem.path) for problem in problems)
        usable += [] if problems else [document]
    if errors and not usable:
        raise NotesError(*errors)
    return MigrationInput(usable, errors)


def _problems(document: Document, library: ReferencedObjects) -> Iterator[DecodeError]:
    """Why the API server would reject a node or a workload."""
    yield from form_errors(document.value)
    try:
        if document.kind == "Node":
            decode_cluster_node(document.value)
            Fields(within(document.value, "metadata"), "metadata").required_text("name")
            return
        for group in groups_of(document, library):
            try:
                PodDecoder().decode({"spec": group.spec, "metadata": {}})
            except DecodeError as error:
                path = error.path.removeprefix("spec").removeprefix(".")
                yield DecodeError(group.place(path), error.problem)
    except DecodeError as error:
        yield error


def _as_object(value: object, source: str) -> object:
    if not is_configuration(value):
        return value
    name = PurePath(source.partition(", document")[0]).stem
    return {"apiVersion": "v1", "kind": BARE, "metadata": {"name": name}, "data": {name: json.dumps(value)}}


def read_cluster(place: Place) -> MigrationInput:
    """The objects of a cluster. Of pods that others have made, only what decides scheduling. Owners of other kinds are
    read if they have pods that request GPUs. Raises ApiError, and InputError if nodes may not be listed.
    """
    assert place.connection is not None
    client = ApiClient(place.connection)
    around, forbidden = place.around(lambda value: dict(value) if _is_bare(value) else reduced_object(value))
    every = {**{name: kind for name, kind in kinds(client).items() if name in _OF_OTHERS}, **_KINDS}
    groups = each(client.get_path("/apis"), "groups")
    served = {str(version.get("groupVersion")) for group in groups for version in each(group, "versions")}
    for name, versions in _OF_ADD_ONS.items():
        version = next((version for version in versions if version in served), None)
        every |= {} if version is None else {name: kind_named(version, name)}
    found, refused = read_around(client, every, dict)
    forbidden += [every[name].plural for name in refused]
    if NODES.plural in forbidden:
        raise InputError(
            f"not allowed to list {', '.join(forbidden)} ({place.connection.identity}); {advice((), NEEDS)}"
        )
    said = f"not considered, as listing them is not allowed: {', '.join(forbidden)}"
    unread = (Note("", said),) if forbidden else ()
    documents = [Document(value, place.where, stored=True) for value in (*around, *(value for _, value in found))]
    for program in programs(documents):
        for namespace, name in program.config_maps() if program.role in ("plugin", "mig") else ():
            value = {**client.get(CONFIG_MAPS, name, namespace), "apiVersion": "v1", "kind": "ConfigMap"}
            documents.append(Document(value, place.where, stored=True))
    library = ReferencedObjects((document.value for document in documents), place.referred)
    owned = [document for document in documents if requests_gpus(document, library)]
    owners, unlisted = read_owners(client, owned, documents, place.where)
    return MigrationInput([*documents, *owners], unread=unread, forbidden=unlisted)


def _is_bare(value: Mapping[str, Any]) -> bool:
    return value.get("kind") == "Pod" and not each(value, "metadata", "ownerReferences")
