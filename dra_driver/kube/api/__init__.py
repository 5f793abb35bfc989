# SPDX-License-Identifier: Apache-2.0
"""A small client for the API server: connection, verbs and watches, for processes that must stay small.

The official client loads the models of all API groups, but a node process needs five verbs for three kinds. So this
client sends requests with urllib3 (`connection`, `answers`), and `dra_driver.kube.resource.codec` converts JSON to the
types of `dra_driver.kube.resource`. `client` has the verbs, `watch` the watches. `kubeconfig` reads kubeconfigs and
runs their exec plugins, and `proxy` finds proxies. `features` tells which fields of a slice the API server stores.
`leases` (leader election) and `events` are imported separately by the processes that need them. `errors` has the
exceptions.
"""

from ..kinds import Kind
from .client import ApiClient, Selection, Transport, first_served, newest_dialect, newest_taint_rules, served_versions
from .connection import Connection, RequestOptions
from .errors import ApiError, ConflictError, ConnectionConfigError, NotFoundError, StatusError, UnreachableError
from .kubeconfig import Credentials, load_credentials
from .watch import Watcher

__all__ = [
    "ApiClient",
    "ApiError",
    "ConflictError",
    "Connection",
    "ConnectionConfigError",
    "Credentials",
    "Kind",
    "NotFoundError",
    "RequestOptions",
    "Selection",
    "StatusError",
    "Transport",
    "UnreachableError",
    "Watcher",
    "first_served",
    "load_credentials",
    "newest_dialect",
    "newest_taint_rules",
    "served_versions",
]
