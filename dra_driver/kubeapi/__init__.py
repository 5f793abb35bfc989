# SPDX-License-Identifier: Apache-2.0
"""The API server, for processes that must stay small: connection, a few verbs, watches.

The official client loads every model of every API group; a node agent needs five verbs on three kinds. So
requests go through urllib3 here, and JSON is turned into the vocabulary by `dra_driver.resource.codec`.
Kubeconfigs are read here too, and their exec programs run. `leases` (leader election) and `events` are for those who
import them.
"""

from .client import NODES, ApiClient, Kind, Page, Transport, claims_of, newest_dialect, slices_of
from .connection import Connection
from .credentials import Credentials
from .errors import ApiError, ConfigError, ConflictError, GoneError, NotFoundError, StatusError, UnreachableError
from .kubeconfig import load_credentials
from .watch import Watcher

__all__ = [
    "NODES",
    "ApiClient",
    "ApiError",
    "ConfigError",
    "ConflictError",
    "Connection",
    "Credentials",
    "GoneError",
    "Kind",
    "NotFoundError",
    "Page",
    "StatusError",
    "Transport",
    "UnreachableError",
    "Watcher",
    "claims_of",
    "load_credentials",
    "newest_dialect",
    "slices_of",
]
