# SPDX-License-Identifier: Apache-2.0
"""Requests on behalf of another user: the headers that `kubectl --as` sends.

Follows pkg/endpoints/filters/impersonation of k8s.io/apiserver: whoever asks needs the verb `impersonate` on every
part of the other identity.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from .. import status
from ..cluster import Cluster
from ..users import ANONYMOUS, AUTHENTICATED, SERVICE_ACCOUNT_PREFIX, User, service_account
from . import rbac

Headers = Iterable[tuple[str, str]]

_USER: Final = "impersonate-user"
_GROUP: Final = "impersonate-group"


def acting_user(cluster: Cluster, user: User, headers: Headers) -> User:
    """Who the request is from: `user`, or whom the headers name. 403 when `user` may not act for them."""
    sent = [(name.lower(), value) for name, value in headers if name.lower().startswith("impersonate-")]
    if not sent:
        return user
    other = _named(sent)
    for asked in _permissions(other, sent):
        if not rbac.allowed(cluster, user, asked):
            raise status.forbidden(asked.resource, asked.group, asked.name, rbac.refusal(user, asked))
    return other


def _named(sent: list[tuple[str, str]]) -> User:
    values = dict(sent)
    name = values.get(_USER, "")
    if not name:
        raise status.internal(f"requested {sent} without impersonating a user")
    groups = tuple(value for key, value in sent if key == _GROUP)
    if not groups and name.startswith(SERVICE_ACCOUNT_PREFIX):
        namespace, _, account = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
        groups = service_account(namespace, account).groups
    elif name == ANONYMOUS.name:
        groups = groups or ANONYMOUS.groups
    elif AUTHENTICATED not in groups:
        groups = (*groups, AUTHENTICATED)
    return User(name, groups)


def _permissions(other: User, sent: Headers) -> Iterator[rbac.Attributes]:
    """What whoever acts for `other` must be allowed. Groups that nobody named come with the user."""
    verb = "impersonate"
    if other.name.startswith(SERVICE_ACCOUNT_PREFIX):
        namespace, _, account = other.name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
        yield rbac.Attributes(verb, "", "serviceaccounts", namespace=namespace, name=account)
    else:
        yield rbac.Attributes(verb, "", "users", name=other.name)
    for header, value in sent:
        if header == _GROUP:
            yield rbac.Attributes(verb, "", "groups", name=value)
