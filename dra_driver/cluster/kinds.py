# SPDX-License-Identifier: Apache-2.0
"""The kinds that this driver talks about, and which version of resource.k8s.io a server has."""

from ..resource.codec import DIALECTS, GROUP, Dialect
from .client import ApiClient, Kind
from .errors import ApiError, NotFoundError

NODES = Kind("v1", "nodes")


def slices_of(dialect: Dialect) -> Kind:
    """ResourceSlices in one version."""
    return Kind(dialect.api_version, "resourceslices")


def claims_of(dialect: Dialect) -> Kind:
    """ResourceClaims in one version."""
    return Kind(dialect.api_version, "resourceclaims", namespaced=True)


def newest_dialect(client: ApiClient) -> Dialect:
    """The newest version of resource.k8s.io that the server serves and this driver knows. Raises ApiError."""
    try:
        group = client.get_path(f"/apis/{GROUP}")
    except NotFoundError:
        group = {}
    served = {version["version"] for version in group.get("versions") or []}
    for dialect in DIALECTS:
        if dialect.version in served:
            return dialect
    found = f"only {', '.join(sorted(served))} of {GROUP}" if served else f"no {GROUP}"
    wanted = ", ".join(dialect.version for dialect in DIALECTS)
    raise ApiError(
        f"the API server serves {found}, and this driver needs one of {wanted}: v1 is on by default from Kubernetes"
        " 1.34; before, start kube-apiserver with --feature-gates=DynamicResourceAllocation=true and"
        f" --runtime-config={GROUP}/v1beta1=true (1.33: also {GROUP}/v1beta2=true)"
    )
