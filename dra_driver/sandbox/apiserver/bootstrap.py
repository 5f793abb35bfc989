# SPDX-License-Identifier: Apache-2.0
"""What is there before the first request: the namespaces, and the roles that RBAC starts with."""

from typing import Final

from .catalog import Catalog
from .cluster import Cluster
from .controllers.internal import internal_call
from .groups.access import RBAC_GROUP
from .objects import Object
from .verbs.write import create

NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_EVERYTHING: Final = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]


def bootstrap(cluster: Cluster) -> None:
    """Makes the first objects, as the API server itself does."""
    for name in NAMESPACES:
        _create(cluster, "", "namespaces", {"metadata": {"name": name}})
    _create(
        cluster,
        RBAC_GROUP,
        "clusterroles",
        {"metadata": {"name": "cluster-admin", "labels": _LABELS}, "rules": _EVERYTHING},
    )
    role = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "cluster-admin"}
    subjects = [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": "system:masters"}]
    _create(
        cluster,
        RBAC_GROUP,
        "clusterrolebindings",
        {"metadata": {"name": "cluster-admin", "labels": _LABELS}, "roleRef": role, "subjects": subjects},
    )


_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}


def _create(cluster: Cluster, group: str, plural: str, obj: Object) -> None:
    catalog: Catalog = cluster.catalog
    served = catalog.find(group, "v1", plural)
    assert served is not None, f"{plural} are built in"
    call = internal_call(served, "", "")
    served.kind.strategy.default(obj, cluster.context())
    create(cluster, call, obj)
