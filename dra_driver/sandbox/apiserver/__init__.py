# SPDX-License-Identifier: Apache-2.0
"""An embedded Kubernetes API server with real HTTP and with its objects in memory.

It serves the kinds that a DRA driver and its users need, and checks them against the schemas that Kubernetes publishes.
It behaves like k8s.io/apiserver 1.32 to 1.37: watches, conflicts, server-side apply, feature gates that drop fields,
garbage collection. kubectl and the official clients work with it unchanged:

    with ApiServer(ApiServerOptions(minor=36)) as server:
        server.write_kubeconfig(Path("kubeconfig"))

docs/reference/sandbox-api-server.md describes what it supports, what it leaves out, and how tests check its answers.
"""

from .release import Release, ReleaseError
from .schema.published import SchemaError
from .server import ApiServer, ApiServerOptions

__all__ = ["ApiServer", "ApiServerOptions", "Release", "ReleaseError", "SchemaError"]
