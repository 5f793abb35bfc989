# SPDX-License-Identifier: Apache-2.0
"""The state of one server: its objects, its kinds, and what it was told to be.

Everything that handles a request gets this object; it is touched on the event loop only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .catalog import Catalog
from .faults import Faults
from .kinds import Context
from .objects import Clock, Object
from .release import Release
from .storage.store import Store
from .users import INTERNAL, Tokens, User

CelCheck = Callable[[str], str | None]
"""What is wrong with a device selector's CEL expression; None when nothing is."""


@dataclass(slots=True)
class Cluster:
    """Objects, kinds and settings of a running server."""

    release: Release
    catalog: Catalog
    clock: Clock
    rbac: bool = False
    check_cel: CelCheck | None = None
    bookmark_interval: float = 60.0
    store: Store = field(default_factory=Store)
    tokens: Tokens = field(default_factory=Tokens)
    faults: Faults = field(default_factory=Faults)

    def context(self, user: User = INTERNAL) -> Context:
        """What strategies may know, for a request of `user`."""
        return Context(self.release, self.clock(), user, self.object, check_cel=self.check_cel)

    def object(self, collection: str, key: str) -> Object | None:
        """A stored object, which must not be changed."""
        record = self.store.get(collection, key)
        return record.object if record else None
