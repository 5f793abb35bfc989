# SPDX-License-Identifier: Apache-2.0
"""Workloads and PodGroups of `scheduling.k8s.io`: the objects that say which pods kube-scheduler places as a whole.

Kubernetes serves them with the feature gate GenericWorkload: v1alpha2 in 1.36, v1beta1 since 1.37. v1alpha1 of 1.35 has
Workloads of another form and no PodGroups, and is not read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..kube.api import ApiClient, NotFoundError, StatusError, first_served, served_versions
from ..kube.kinds import POD_GROUPS, WORKLOADS, Kind
from .documents import Document, within
from .groups import NOT_AMONG_FILES, NOT_SAVED, Key, key_of
from .rights import FORBIDDEN

JSON = dict[str, Any]

POD_GROUP: Final[Key] = (POD_GROUPS.group, "PodGroup")
WORKLOAD: Final[Key] = (WORKLOADS.group, "Workload")
KINDS: Final[Mapping[str, Kind]] = {POD_GROUP[1]: POD_GROUPS, WORKLOAD[1]: WORKLOADS}
"""Both kinds in their newest version, by name."""
_OTHER_FORM: Final = f"{POD_GROUPS.group}/v1alpha1"


def concerns_groups(document: Document) -> bool:
    """Whether a document is a Workload or a PodGroup, or says that there are none."""
    group, kind = key_of(document.value)
    kind = kind.removesuffix("List") if document.is_empty_list else kind
    return (group, kind) in (POD_GROUP, WORKLOAD)


def served_kinds(client: ApiClient) -> dict[str, Kind]:
    """The served kinds of `KINDS` by name, in the version that the server prefers. This needs no right to read objects.
    Raises ApiError.
    """
    try:
        versions = [version for version in served_versions(client, POD_GROUPS.group) if version != _OTHER_FORM]
    except NotFoundError:
        return {}
    found = {
        name: first_served(client, (replace(kind, api_version=version) for version in versions))
        for name, kind in KINDS.items()
    }
    return {name: kind for name, kind in found.items() if kind is not None}


def workloads_of_cluster(client: ApiClient, namespaces: Iterable[str]) -> tuple[list[JSON], str]:
    """The Workloads of these namespaces, and a text if they may not be listed. Raises ApiError."""
    kind = served_kinds(client).get(WORKLOAD[1])
    if kind is None:
        return [], ""
    identity = {"apiVersion": kind.api_version, "kind": WORKLOAD[1]}
    try:
        pages = [client.list(kind, namespace=namespace) for namespace in namespaces]
    except StatusError as error:
        if error.status != FORBIDDEN:
            raise
        return [], f"not considered, as listing them is not allowed: {kind.plural}"
    return [{**identity, **value} for page in pages for value in page.items], ""


class SavedPodGroups:
    """The Workloads and PodGroups among the files with a cluster. `where` names the files."""

    def __init__(self, documents: Sequence[Document], where: str) -> None:
        self._where = where
        self.documents = [document for document in documents if concerns_groups(document)]
        """Also empty lists of both kinds."""
        self._groups = {
            (document.namespace, str(within(document.value, "metadata").get("name"))): document.value
            for document in self.documents
            if key_of(document.value) == POD_GROUP
        }
        kinds = {document.kind.removesuffix("List") for document in self.documents}
        has_pods = any(document.kind in ("Pod", "PodList") for document in documents)
        self._lacks_groups = has_pods and POD_GROUP[1] not in kinds
        self._lacks_workloads = POD_GROUP[1] in kinds and WORKLOAD[1] not in kinds

    def find(self, namespace: str, name: str) -> JSON | str:
        """A PodGroup, or a text why it is not known: that it does not exist, or that no PodGroups were saved."""
        if (namespace, name) in self._groups:
            return self._groups[namespace, name]
        if self._lacks_groups:
            return f"{NOT_AMONG_FILES}, and {NOT_SAVED}"
        return f"is neither among the files nor in {self._where}"

    def workloads(self, namespaces: Collection[str]) -> tuple[list[JSON], str]:
        """The Workloads of these namespaces, and a text if none were saved although PodGroups were."""
        values = [
            document.value
            for document in self.documents
            if key_of(document.value) == WORKLOAD and document.namespace in namespaces
        ]
        text = f"not considered, as they are not in the files of --slices: {WORKLOADS.plural}"
        return values, text if self._lacks_workloads else ""
