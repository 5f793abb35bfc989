# SPDX-License-Identifier: Apache-2.0
"""Writes of the server's own controllers, by the same path as everyone's."""

from collections.abc import Callable

from ..catalog import Cluster
from ..kinds import Served
from ..objects import Object, clone
from ..storage.store import Record
from ..users import INTERNAL
from ..verbs.call import Call
from ..verbs.write import replace

MANAGER = "kube-apiserver"


def internal_call(served: Served, namespace: str, name: str, subresource: str = "") -> Call:
    """A request of the server itself."""
    return Call("update", served, namespace, name, subresource, INTERNAL, user_agent=MANAGER)


def modify(
    cluster: Cluster, collection: str, record: Record, change: Callable[[Object], None], subresource: str = ""
) -> Record:
    """Changes a stored object; the same record when the change makes no difference."""
    obj: Object = clone(record.object)
    change(obj)
    if obj == record.object:
        return record
    meta = record.object["metadata"]
    call = internal_call(
        cluster.catalog.of_collection(collection), meta.get("namespace", ""), meta["name"], subresource
    )
    return replace(cluster, call, record, obj)
