# SPDX-License-Identifier: Apache-2.0
"""Permissions that are finer than a request: parts of a ResourceClaim's status, since 1.36.

They are asked of RBAC as subresources that no URL leads to: `resourceclaims/binding` and
`resourceclaims/driver`.
"""

from collections.abc import Callable

from ..cluster import Cluster
from ..kinds import Kind
from ..users import User
from . import rbac


def authorizer(cluster: Cluster, user: User, wanted: str, kind: Kind) -> Callable[[str, str, str, str], str | None]:
    """Answers (prefix of the verb `wanted`, subresource, namespace, name) with why the user may not, or None."""

    def refusal(prefix: str, subresource: str, namespace: str, name: str) -> str | None:
        verb = prefix + wanted
        asked = rbac.Attributes(verb, kind.group, kind.plural, subresource, namespace, name)
        if rbac.allowed(cluster, user, asked):
            return None
        return f'verb="{verb}" permission: {rbac.refusal(user, asked)}'

    return refusal
