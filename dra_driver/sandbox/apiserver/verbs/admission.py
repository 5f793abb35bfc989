# SPDX-License-Identifier: Apache-2.0
"""What the server refuses besides invalid objects: the admission plugins that matter here.

Only NamespaceLifecycle: nothing is made in a namespace that does not exist or is going, and the
namespaces that the system needs stay.
"""

from typing import Final

from .. import status
from ..cluster import Cluster
from ..objects import Object
from .call import Call

IMMORTAL: Final = ("default", "kube-system", "kube-public")


def check_create(cluster: Cluster, call: Call, obj: Object) -> None:
    """Raises 404 or 403 when the namespace cannot take a new object."""
    if not call.kind.namespaced:
        return
    namespace = cluster.object("namespaces", call.namespace)
    if namespace is None:
        raise status.not_found("namespaces", "", call.namespace)
    if namespace["metadata"].get("deletionTimestamp"):
        text = f"unable to create new content in namespace {call.namespace} because it is being terminated"
        error = status.forbidden(call.kind.plural, call.kind.group, obj["metadata"].get("name", ""), text)
        assert error.details is not None
        error.details["causes"] = [
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {call.namespace} is being terminated",
                "field": "metadata.namespace",
            }
        ]
        raise error


def check_delete(call: Call) -> None:
    """Raises 403 when the object must not be deleted."""
    if call.kind.stored_in == "namespaces" and call.name in IMMORTAL:
        raise status.forbidden("namespaces", "", call.name, "this namespace may not be deleted")
