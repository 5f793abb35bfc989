# SPDX-License-Identifier: Apache-2.0
"""An embedded Kubernetes API server: real HTTP, real semantics, objects in memory.

It serves the kinds that a DRA driver and its users touch, checks them against the schemas that
Kubernetes publishes, and behaves as k8s.io/apiserver 1.32 to 1.37 does: watches, conflicts,
server-side apply, feature gates that drop fields, garbage collection. kubectl and the official
clients work with it as they are:

    with ApiServer(ApiServerOptions(minor=36)) as server:
        server.write_kubeconfig(Path("kubeconfig"))
        server.faults.add(RequestFault(verb="patch", resource="resourceclaims", error=409, times=1))

docs/sandbox-apiserver.md says what is there, what a real server has besides, and how the answers are checked.
"""

from .faults import Alteration, Faults, RequestFault
from .release import Release, ReleaseError
from .schema.published import SchemaError
from .server import ApiServer, ApiServerOptions, RunningServer
from .users import ADMIN, User, service_account

__all__ = [
    "ADMIN",
    "Alteration",
    "ApiServer",
    "ApiServerOptions",
    "Faults",
    "Release",
    "ReleaseError",
    "RequestFault",
    "RunningServer",
    "SchemaError",
    "User",
    "service_account",
]
