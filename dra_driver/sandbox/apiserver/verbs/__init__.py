# SPDX-License-Identifier: Apache-2.0
"""The verbs of the API, one module for each group of verbs. `run` calls the code of a request's verb."""

from typing import Final

from .. import status
from ..catalog import ServedCluster
from ..listing import ListPage
from ..objects import Object
from ..store import StoredObject
from . import delete, modify, request, subresources
from .request import ApiCall

_STATUS_VERBS: Final = ("get", "update", "patch")


def run(cluster: ServedCluster, call: ApiCall) -> tuple[StoredObject | ListPage | Object, int]:
    """Execute any verb except watch, and return the result and its HTTP status. Raises RequestError."""
    if call.subresource and call.subresource != "status":
        handler = subresources.HANDLERS.get((call.subresource, call.verb))
        if handler is None:
            raise status.method_not_allowed()
        return handler(cluster, call)
    match call.verb:
        case "get":
            return request.get_object(cluster, call), 200
        case "list":
            return request.list_objects(cluster, call), 200
        case "create":
            return modify.create_object(cluster, call)
        case "update":
            return modify.update_object(cluster, call)
        case "patch":
            return modify.patch_object(cluster, call)
        case "delete":
            return delete.delete_object(cluster, call)
        case "deletecollection":
            return delete.delete_collection(cluster, call), 200
    raise status.method_not_allowed()


def check_shape(call: ApiCall) -> None:
    """Raise 404 or 405 if the URL does not match the kind, or the verb does not match the URL."""
    kind = call.kind
    if call.subresource:
        if call.subresource not in kind.subresources:
            raise status.no_such_resource()
        if call.subresource == "status" and call.verb not in _STATUS_VERBS:
            raise status.method_not_allowed()
        return
    if kind.namespaced != bool(call.namespace):
        if not kind.namespaced or call.name:
            raise status.no_such_resource()
        if call.verb not in ("list", "watch"):
            raise status.method_not_allowed()
    named = call.verb in ("get", "update", "patch", "delete")
    if call.verb not in kind.verbs or named != bool(call.name):
        raise status.method_not_allowed()
