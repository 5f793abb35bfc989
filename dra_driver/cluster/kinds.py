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
    wanted = ", ".join(dialect.version for dialect in DIALECTS)
    try:
        group = client.get_path(f"/apis/{GROUP}")
    except NotFoundError:
        raise ApiError(
            f"the API server has no {GROUP}: dynamic resource allocation is off (on by default from Kubernetes 1.34;"
            f" before, enable the gate DynamicResourceAllocation and --runtime-config={GROUP}/v1beta1=true)"
        ) from None
    served = {version["version"] for version in group.get("versions") or []}
    for dialect in DIALECTS:
        if dialect.version in served:
            return dialect
    raise ApiError(f"the API server has {GROUP} in {', '.join(sorted(served))} only; this driver speaks {wanted}")
