# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects that the driver's programs read and write, and where the API server has them.

The driver's own kinds (ComputeDomains and their cliques) are in `dra_driver.domains.objects`.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from .resource.codec import Dialect


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects: `plural` in `api_version` (`v1`, or `group/version`)."""

    api_version: str
    plural: str
    namespaced: bool = False

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of an object, or of its subresource."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        parts = [self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return root + "/".join(parts)


def kind_named(api_version: str, name: str, *, namespaced: bool = False) -> Kind:
    """The kind with the name that objects have in their field `kind`, such as `DaemonSet`.

    The plural is the regular one (`UnsafeGuessKindToResource` in k8s.io/apimachinery/pkg/api/meta). It is right for all
    kinds of Kubernetes, except for Endpoints.
    """
    singular = name.lower()
    for ending, plural in (("y", "ies"), ("s", "ses")):
        if singular.endswith(ending):
            return Kind(api_version, singular.removesuffix(ending) + plural, namespaced)
    return Kind(api_version, f"{singular}s", namespaced)


CONFIG_MAPS: Final = Kind("v1", "configmaps", namespaced=True)
EVENTS: Final = Kind("v1", "events", namespaced=True)
NAMESPACES: Final = Kind("v1", "namespaces")
NODES: Final = Kind("v1", "nodes")
PODS: Final = Kind("v1", "pods", namespaced=True)
RESOURCE_QUOTAS: Final = Kind("v1", "resourcequotas", namespaced=True)
SERVICE_ACCOUNTS: Final = Kind("v1", "serviceaccounts", namespaced=True)

CONTROLLER_REVISIONS: Final = Kind("apps/v1", "controllerrevisions", namespaced=True)
DAEMON_SETS: Final = Kind("apps/v1", "daemonsets", namespaced=True)
DEPLOYMENTS: Final = Kind("apps/v1", "deployments", namespaced=True)
REPLICA_SETS: Final = Kind("apps/v1", "replicasets", namespaced=True)
STATEFUL_SETS: Final = Kind("apps/v1", "statefulsets", namespaced=True)
JOBS: Final = Kind("batch/v1", "jobs", namespaced=True)

ACCESS_REVIEWS: Final = Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews")
DEFINITIONS: Final = Kind("apiextensions.k8s.io/v1", "customresourcedefinitions")
LEASES: Final = Kind("coordination.k8s.io/v1", "leases", namespaced=True)
NETWORK_POLICIES: Final = Kind("networking.k8s.io/v1", "networkpolicies", namespaced=True)
ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "roles", namespaced=True)
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io/v1", "rolebindings", namespaced=True)
POD_GROUPS: Final = Kind("scheduling.k8s.io/v1beta1", "podgroups", namespaced=True)
"""Kubernetes 1.37 serves them, and Workloads, with the gate GenericWorkload."""
WORKLOADS: Final = Kind("scheduling.k8s.io/v1beta1", "workloads", namespaced=True)

CERTIFICATES: Final = Kind("cert-manager.io/v1", "certificates", namespaced=True)
NODE_FEATURES: Final = Kind("nfd.k8s-sigs.io/v1alpha1", "nodefeatures", namespaced=True)


def claims_of(dialect: Dialect) -> Kind:
    """ResourceClaims in one API version."""
    return Kind(dialect.api_version, "resourceclaims", namespaced=True)


def templates_of(dialect: Dialect) -> Kind:
    """ResourceClaimTemplates in one API version."""
    return Kind(dialect.api_version, "resourceclaimtemplates", namespaced=True)


def slices_of(dialect: Dialect) -> Kind:
    """ResourceSlices in one API version."""
    return Kind(dialect.api_version, "resourceslices")


def classes_of(dialect: Dialect) -> Kind:
    """DeviceClasses in one API version."""
    return Kind(dialect.api_version, "deviceclasses")
