# SPDX-License-Identifier: Apache-2.0
"""Users and their bearer tokens."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .objects import Object

SYSTEM_MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
NODE_UID: Final = "authentication.kubernetes.io/node-uid"
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"
SERVICE_ACCOUNT_PREFIX: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request, as in a TokenReview."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def info(self) -> Object:
        """The user as a UserInfo object."""
        info: Object = {"username": self.name}
        if self.uid:
            info["uid"] = self.uid
        if self.groups:
            info["groups"] = list(self.groups)
        if self.extra:
            info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return info

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that a service account's token is bound to. Empty for other users."""
        if not self.name.startswith(SERVICE_ACCOUNT_PREFIX):
            return ()
        return tuple(self.extra.get(NODE_NAME, ()))


ADMIN: Final = User("kubernetes-admin", (SYSTEM_MASTERS, AUTHENTICATED))
INTERNAL: Final = User("system:apiserver", (SYSTEM_MASTERS, AUTHENTICATED))
"""The user of the server's own controllers."""


def service_account(
    namespace: str, name: str, *, node: str = "", node_uid: str = "", pod: str = "", pod_uid: str = "", uid: str = ""
) -> User:
    """Return the user of a service account. With `node`, its token is bound to a node, or to the `pod` on that node."""
    bound = {NODE_NAME: node, NODE_UID: node_uid, POD_NAME: pod, POD_UID: pod_uid}
    extra = {key: (value,) for key, value in bound.items() if value}
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}", groups, uid, extra)


class Tokens:
    """The bearer tokens that the server accepts."""

    def __init__(self) -> None:
        self._users: dict[str, tuple[User, float | None]] = {}

    def add(self, token: str, user: User, *, lifetime: float | None = None) -> None:
        """Accept `token` for `user`, for `lifetime` seconds or without a limit."""
        self._users[token] = (user, None if lifetime is None else time.monotonic() + lifetime)

    def issue(self, user: User, *, lifetime: float | None = None) -> str:
        """Return a new random token for `user`."""
        token = secrets.token_urlsafe(32)
        self.add(token, user, lifetime=lifetime)
        return token

    def revoke(self, token: str) -> None:
        """Stop accepting `token`."""
        self._users.pop(token, None)

    def user(self, token: str) -> User | None:
        """Return the user of the token, or None if the token is unknown or has expired."""
        user, expiry = self._users.get(token, (None, None))
        return None if expiry is not None and time.monotonic() >= expiry else user
