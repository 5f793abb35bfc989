# SPDX-License-Identifier: Apache-2.0
"""Users of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .objects import Object

SYSTEM_MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
SERVICE_ACCOUNT_PREFIX: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request, as in a TokenReview."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def info(self) -> Object:
        """The user as a UserInfo object."""
        extra = {key: list(values) for key, values in self.extra.items()}
        return {"username": self.name, "groups": list(self.groups), "extra": extra}

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that a service account's token is bound to. Empty for other users."""
        if not self.name.startswith(SERVICE_ACCOUNT_PREFIX):
            return ()
        return tuple(self.extra.get(NODE_NAME, ()))


ADMIN: Final = User("kubernetes-admin", (SYSTEM_MASTERS, AUTHENTICATED))
INTERNAL: Final = User("system:apiserver", (SYSTEM_MASTERS, AUTHENTICATED))
"""The user of the server's own controllers."""


def service_account(namespace: str, name: str, *, node: str = "") -> User:
    """Return the user of a service account. With `node`, its token is bound to a pod on that node."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
    return User(f"{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}", groups, {NODE_NAME: (node,)} if node else {})
