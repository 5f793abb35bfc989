# SPDX-License-Identifier: Apache-2.0
"""Users of requests, role-based access control with the stored roles and bindings, and access reviews.

Follows plugin/pkg/auth/authorizer/rbac of k8s.io/kubernetes. A review answers a user's question about themselves and
stores nothing. The server does not check that users grant only permissions that they have, and it does not aggregate
cluster roles.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from multidict import CIMultiDictProxy

from . import status
from .catalog import ServedCluster
from .groups.core import RBAC_GROUP
from .kinds import ServedKind
from .objects import Object, now, timestamp
from .users import AUTHENTICATED, SERVICE_ACCOUNT_PREFIX, SYSTEM_MASTERS, User, service_account

_ROLES: Final = f"roles.{RBAC_GROUP}"
_CLUSTER_ROLES: Final = f"clusterroles.{RBAC_GROUP}"
_ROLE_BINDINGS: Final = f"rolebindings.{RBAC_GROUP}"
_CLUSTER_ROLE_BINDINGS: Final = f"clusterrolebindings.{RBAC_GROUP}"

# kube-apiserver grants these permissions with its own roles: health checks, discovery, and self reviews.
_FOR_EVERYONE: Final[tuple[Object, ...]] = (
    {"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"]},
)
_FOR_AUTHENTICATED: Final[tuple[Object, ...]] = (
    {"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]},
    {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    {
        "verbs": ["create"],
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    },
)

_AUTHENTICATION: Final = "authentication.k8s.io"
_AUTHORIZATION: Final = "authorization.k8s.io"
Review = tuple[str, Callable[[ServedCluster, User, Object], Object]]
"""The kind of a review, and the function that returns its status from the cluster, the user and the spec."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """The permission that a request needs: on a resource, or with `path` on a URL that names no resource."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """The resource with its subresource: `pods`, or `pods/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def allowed(cluster: ServedCluster, user: User, asked: Attributes) -> bool:
    """Return whether the user has the permission. Without RBAC, everyone has it, and system:masters always has it."""
    if not cluster.rbac or SYSTEM_MASTERS in user.groups:
        return True
    return any(_permits(rule, asked) for rule in rules_for(cluster, user, asked.namespace))


def refusal(user: User, asked: Attributes) -> str:
    """Return the text for a user without the permission, as in k8s.io/apiserver."""
    if asked.path:
        return f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    return (
        f'User "{user.name}" cannot {asked.verb} resource "{asked.full_resource}" in API group "{asked.group}" {where}'
    )


def rules_for(cluster: ServedCluster, user: User, namespace: str) -> Iterator[Object]:
    """Yield the rules that apply to a user in the cluster and in a namespace."""
    yield from _FOR_EVERYONE
    if AUTHENTICATED in user.groups:
        yield from _FOR_AUTHENTICATED
    for record in cluster.store.collection(_CLUSTER_ROLE_BINDINGS).records.values():
        if _binds(record.object, user):
            yield from _rules(cluster, record.object["roleRef"], "")
    if not namespace:
        return
    for record in cluster.store.collection(_ROLE_BINDINGS).records.values():
        if record.namespace == namespace and _binds(record.object, user):
            yield from _rules(cluster, record.object["roleRef"], namespace)


def _rules(cluster: ServedCluster, role: Object, namespace: str) -> Iterable[Object]:
    if role.get("kind") == "ClusterRole":
        found = cluster.object(_CLUSTER_ROLES, role.get("name", ""))
    else:
        found = cluster.object(_ROLES, f"{namespace}/{role.get('name', '')}")
    return (found or {}).get("rules") or ()


def _binds(binding: Object, user: User) -> bool:
    return any(_is_subject(subject, user, binding) for subject in binding.get("subjects") or ())


def _is_subject(subject: Object, user: User, binding: Object) -> bool:
    match subject.get("kind"):
        case "User":
            return bool(subject.get("name") == user.name)
        case "Group":
            return subject.get("name") in user.groups
        case "ServiceAccount":
            namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
            return user.name == f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{subject.get('name', '')}"
    return False


def _permits(rule: Object, asked: Attributes) -> bool:
    if not _has(rule.get("verbs"), asked.verb):
        return False
    if asked.path:
        return _matches_path(rule.get("nonResourceURLs") or (), asked.path)
    if not _has(rule.get("apiGroups"), asked.group) or not _has_resource(rule.get("resources"), asked):
        return False
    return not rule.get("resourceNames") or asked.name in rule["resourceNames"]


def _has(values: Any, wanted: str) -> bool:
    return bool(values) and ("*" in values or wanted in values)


def _has_resource(resources: Any, asked: Attributes) -> bool:
    if _has(resources, asked.full_resource):
        return True
    return bool(asked.subresource) and f"*/{asked.subresource}" in (resources or ())


def _matches_path(patterns: Iterable[str], path: str) -> bool:
    return any(
        path == pattern or pattern == "*" or (pattern.endswith("*") and path.startswith(pattern[:-1]))
        for pattern in patterns
    )


def authorizer(
    cluster: ServedCluster, user: User, wanted: str, kind: ServedKind
) -> Callable[[str, str, str, str], str | None]:
    """Return a check of permissions on parts of a claim's status, which exist since Kubernetes 1.36.

    RBAC sees them as the subresources `resourceclaims/binding` and `resourceclaims/driver`, which have no URL. The
    result takes a prefix of the verb `wanted`, subresource, namespace and name. It returns why the user lacks the
    permission, or None.
    """

    def problem(prefix: str, subresource: str, namespace: str, name: str) -> str | None:
        verb = prefix + wanted
        asked = Attributes(verb, kind.group, kind.plural, subresource, namespace, name)
        if allowed(cluster, user, asked):
            return None
        return f'verb="{verb}" permission: {refusal(user, asked)}'

    return problem


def authenticate(cluster: ServedCluster, headers: CIMultiDictProxy[str]) -> User:
    """Return the user of a request: the owner of its token, or the user that the owner impersonates.

    For the headers that `kubectl --as` sends, the owner needs the verb `impersonate` on the other user. Raises 401 and
    403.
    """
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    user = cluster.users.get(token.strip())
    if user is None or scheme.lower() != "bearer":
        raise status.unauthorized()
    name = headers.get("Impersonate-User", "")
    if not name:
        return user
    asked = Attributes("impersonate", resource="users", name=name)
    if not allowed(cluster, user, asked):
        raise status.forbidden("users", "", name, refusal(user, asked))
    groups = headers.getall("Impersonate-Group", ())
    if name.startswith(SERVICE_ACCOUNT_PREFIX) and not groups:
        namespace, _, account = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
        return service_account(namespace, account)
    return User(name, (*groups, AUTHENTICATED))


def _self(cluster: ServedCluster, user: User, spec: Object) -> Object:
    return {"userInfo": user.info}


def _self_access(cluster: ServedCluster, user: User, spec: Object) -> Object:
    if path := spec.get("nonResourceAttributes"):
        asked = Attributes(path.get("verb", ""), path=path.get("path", ""))
    else:
        of = spec.get("resourceAttributes") or {}
        fields = ("verb", "group", "resource", "subresource", "namespace", "name")
        asked = Attributes(*(of.get(field, "") for field in fields))
    return {"allowed": allowed(cluster, user, asked)}


def _self_rules(cluster: ServedCluster, user: User, spec: Object) -> Object:
    rules = list(rules_for(cluster, user, spec.get("namespace", "")))
    if not cluster.rbac:
        rules += [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return {
        "resourceRules": [rule for rule in rules if not rule.get("nonResourceURLs")],
        "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


REVIEWS: Final[Mapping[tuple[str, str, str], Review]] = {
    (_AUTHENTICATION, "v1", "selfsubjectreviews"): ("SelfSubjectReview", _self),
    (_AUTHORIZATION, "v1", "selfsubjectaccessreviews"): ("SelfSubjectAccessReview", _self_access),
    (_AUTHORIZATION, "v1", "selfsubjectrulesreviews"): ("SelfSubjectRulesReview", _self_rules),
}
"""The kinds that clients only create, by group, version and plural. The server answers without storing them."""


def answer(cluster: ServedCluster, user: User, body: Object, review: Review) -> Object:
    """Return a review with its status. `body` is the decoded review."""
    spec = body.get("spec") or {}
    meta = {"creationTimestamp": timestamp(now())}
    return {**body, "metadata": meta, "status": review[1](cluster, user, spec)}
