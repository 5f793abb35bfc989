# SPDX-License-Identifier: Apache-2.0
"""An embedded Kubernetes API server: real HTTP, real semantics, objects in memory.

It serves the kinds that a DRA driver and its users touch, checks them against the schemas that
Kubernetes publishes, and behaves as k8s.io/apiserver 1.32 to 1.37 does: watches, conflicts,
server-side apply, feature gates that drop fields, garbage collection. kubectl and the official
clients work with it as they are:

    with ApiServer(ApiServerOptions(minor=36)) as server:
        server.write_kubeconfig(Path("kubeconfig"))
        server.faults.add(Fault(verb="patch", resource="resourceclaims", error=409, times=1))

What a real server has and this one lacks:

- Protobuf bodies are read, but answers are JSON or YAML; no CBOR, HTTP/2 or compression.
- No admission beyond the kinds' own rules: webhooks, policies, quotas and priority classes are
  stored and have no effect. Pods get no service account token volume.
- RBAC, when enforced, does not stop users from granting what they do not have, and does not
  aggregate ClusterRoles. There is no node authorizer.
- Device selectors are compiled only by `ApiServerOptions.check_cel`. Rules of custom resources run
  without Kubernetes' extensions of CEL. Conversion webhooks are refused.
- Objects of core, apps and batch are checked against their schemas and their most important rules.
- Nothing of a pod that needs a kubelet (log, exec, port-forward, resize, ephemeral containers).
  Evictions ignore disruption budgets.
- No priority and fairness, audit log or metrics. A collection remembers its last 10,000 changes.
"""

from .auth.users import ADMIN, User, service_account
from .faults import Fault, Faults
from .release import Release, ReleaseError
from .schema.published import SchemaError
from .server import ApiServer, ApiServerOptions, RunningServer, run, serving

__all__ = [
    "ADMIN",
    "ApiServer",
    "ApiServerOptions",
    "Fault",
    "Faults",
    "Release",
    "ReleaseError",
    "RunningServer",
    "SchemaError",
    "User",
    "run",
    "service_account",
    "serving",
]
