# SPDX-License-Identifier: Apache-2.0
"""Serving the kinds of CustomResourceDefinitions, and withdrawing them with their objects."""

from ..cluster import Cluster
from ..groups.crds import GROUP, custom_kinds, custom_type
from ..storage.store import Change, Event

DEFINITIONS = f"customresourcedefinitions.{GROUP}"


class CustomKinds:
    """Keeps the catalog in step with the definitions. Call `observe` with every event."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def observe(self, collection: str, event: Event) -> None:
        """Serves what a new or changed definition says; with a definition its objects go, too."""
        if collection != DEFINITIONS:
            return
        catalog, crd = self._cluster.catalog, event.record.object
        catalog.withdraw(crd["spec"]["group"], crd["spec"]["names"]["plural"])
        if event.change is Change.DELETED:
            self._cluster.store.drop(event.record.key)
            return
        namespace = catalog.find("", "v1", "namespaces")
        assert namespace is not None, "namespaces are always served"
        for kind, version in custom_kinds(crd):
            catalog.add(kind, version, custom_type(kind, version, namespace.type.fields["metadata"]))
