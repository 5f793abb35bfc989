# SPDX-License-Identifier: Apache-2.0
"""Questions of users about themselves: who they are, and what they may. Nothing is stored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .. import status
from ..cluster import Cluster
from ..objects import Object, timestamp
from ..users import User
from . import rbac

AUTHENTICATION: Final = "authentication.k8s.io"
AUTHORIZATION: Final = "authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class Review:
    """A kind that is only ever created, to be answered."""

    group: str
    kind: str
    plural: str
    answer: Callable[[Cluster, User, Object], Object]
    """(cluster, who asks, the request's body) -> its status."""


def _self(cluster: Cluster, user: User, body: Object) -> Object:
    return {"userInfo": user.info}


def _self_access(cluster: Cluster, user: User, body: Object) -> Object:
    return _access(cluster, user, _spec(body))


def _access(cluster: Cluster, user: User, spec: Object) -> Object:
    resource: Object = spec.get("resourceAttributes") or {}
    path: Object = spec.get("nonResourceAttributes") or {}
    if bool(resource) == bool(path):
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise status.bad_request(text)
    if resource:
        asked = rbac.Attributes(
            resource.get("verb", ""),
            resource.get("group", ""),
            resource.get("resource", ""),
            resource.get("subresource", ""),
            resource.get("namespace", ""),
            resource.get("name", ""),
        )
    else:
        asked = rbac.Attributes(path.get("verb", ""), path=path.get("path", ""))
    allowed = rbac.allowed(cluster, user, asked)
    return {"allowed": True} if allowed else {"allowed": False, "reason": ""}


def _self_rules(cluster: Cluster, user: User, body: Object) -> Object:
    rules = list(rbac.rules_for(cluster, user, _spec(body).get("namespace", "")))
    if not cluster.rbac:
        rules += [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return {
        "resourceRules": [rule for rule in rules if not rule.get("nonResourceURLs")],
        "nonResourceRules": [rule for rule in rules if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def _spec(body: Object) -> Object:
    spec: Object = body.get("spec") or {}
    return spec


REVIEWS: Final = (
    Review(AUTHENTICATION, "SelfSubjectReview", "selfsubjectreviews", _self),
    Review(AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews", _self_access),
    Review(AUTHORIZATION, "SelfSubjectRulesReview", "selfsubjectrulesreviews", _self_rules),
)


def find_review(group: str, version: str, plural: str) -> Review | None:
    """The review that a URL leads to."""
    if version != "v1":
        return None
    return next((review for review in REVIEWS if (review.group, review.plural) == (group, plural)), None)


def answer(cluster: Cluster, review: Review, user: User, body: Object) -> Object:
    """The review's object with its status filled in."""
    meta = body.get("metadata") or {"creationTimestamp": timestamp(cluster.clock())}
    result: Object = {"kind": review.kind, "apiVersion": f"{review.group}/v1", "metadata": meta}
    if "spec" in body:
        result["spec"] = body["spec"]
    result["status"] = review.answer(cluster, user, body)
    return result
