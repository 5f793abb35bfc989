# SPDX-License-Identifier: Apache-2.0
"""Permissions that are finer than a request: parts of a ResourceClaim's status, since 1.36.

They are asked of RBAC as subresources that no URL leads to: `resourceclaims/binding` and
`resourceclaims/driver`.
"""

from collections.abc import Callable

from ..cluster import Cluster
from ..verbs.call import Call
from . import rbac


def authorizer(cluster: Cluster, call: Call) -> Callable[[str, str, str, str], str | None]:
    """Answers (verb prefix, subresource, namespace, name) with why the caller may not, or None."""

    def refusal(prefix: str, subresource: str, namespace: str, name: str) -> str | None:
        verb = prefix + call.verb
        asked = rbac.Attributes(verb, call.kind.group, call.kind.plural, subresource, namespace, name)
        if rbac.allowed(cluster, call.user, asked):
            return None
        return f'verb="{verb}" permission: {rbac.refusal(call.user, asked)}'

    return refusal
