# SPDX-License-Identifier: Apache-2.0
"""The members of this daemon's domain and clique, from the object that the cluster controller writes."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...errors import NotPlacedError
from ...kube.api import ApiClient, Watcher
from ...kube.api.client import JSON
from ...kube.resource.codec import DecodeError
from ...process.containment import Count, nobody
from ..objects import CLIQUES, Clique, decode_clique

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0


@dataclass(frozen=True, slots=True)
class DomainPlace:
    """The place of this daemon in its domain, and the members. `slots` is the number of lines in the list of nodes,
    `index` the own one. `addresses` and `nodes` are those of all members, by index. `ready` are the indices of the
    members that report to be ready.
    """

    slots: int
    index: int
    addresses: Mapping[int, str]
    nodes: Mapping[int, str]
    ready: frozenset[int] = frozenset()

    @property
    def peers(self) -> frozenset[int]:
        """The indices of the other members."""
        return frozenset(self.nodes) - {self.index}


def place_in(clique: Clique | None, node: str, address: str, problem: str | None = None) -> DomainPlace:
    """The place of the daemon with this address on this node. Raises NotPlacedError. `problem` is why the object may
    not be known.
    """
    position = None if clique is None else clique.row(node)
    if clique is None or position is None:
        waits = "the daemon waits for its place in the domain"
        raise NotPlacedError(f"{waits}: {problem}" if problem else f"{waits}, which the cluster controller gives it")
    own = clique.members[position]
    if own.address != address:
        raise NotPlacedError(
            f"the daemon waits for its place in the domain: this node is a member with address {own.address}, not"
            f" {address}, so the cluster controller has not noticed the new pod yet"
        )
    members = {member.index: member for member in clique.members}
    if len(members) < len(clique.members) or not all(0 <= index < clique.slots for index in members):
        indices = ", ".join(f"{member.node}={member.index}" for member in clique.members)
        raise NotPlacedError(
            f"the indices of {clique.name} are not different numbers below {clique.slots} ({indices}): delete the"
            " object, and the cluster controller makes it again"
        )
    # A peer whose pod is gone may have had the address that this pod has now. It must not be resolved to this daemon.
    addresses = {
        index: member.address
        for index, member in members.items()
        if member.address and (member is own or member.address != address)
    }
    nodes = {index: member.node for index, member in members.items()}
    ready = frozenset(index for index, member in members.items() if member.report.ready)
    return DomainPlace(clique.slots, own.index, addresses, nodes, ready)


class CliqueWatch:
    """Watches one clique, and calls `changed` after each change, on a thread of its own."""

    def __init__(
        self, client: ApiClient, namespace: str, name: str, changed: Callable[[], None], count: Count = nobody
    ) -> None:
        self.clique: Clique | None = None
        self.events = 0
        self._name = name
        self._changed = changed
        self._watcher = Watcher(
            client,
            CLIQUES,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            on_list=self._take_list,
            on_event=self._take_event,
            longest_pause=_LONGEST_PAUSE,
            count=count,
        )

    @property
    def problem(self) -> str | None:
        """Why the members are unknown at the moment, or None."""
        return self._watcher.problem

    def start(self) -> None:
        """Start the thread."""
        self._watcher.start()

    def stop(self) -> None:
        """End the thread soon."""
        self._watcher.stop()

    def offer(self, value: JSON) -> None:
        """Use the object in an answer of the API server, unless a newer one is known."""
        clique, before = self._read(value), self.clique
        if clique is not None and (before is None or not _is_older(clique, before)):
            self.clique = clique

    def _read(self, value: JSON) -> Clique | None:
        try:
            return decode_clique(value)
        except (DecodeError, KeyError, TypeError) as error:
            log.error("the object %s cannot be read, so its change is ignored: %s", self._name, error)
            return None

    def _take_list(self, items: list[JSON]) -> None:
        self.clique = next(filter(None, map(self._read, items)), None)
        self._note()

    def _take_event(self, kind: str, value: JSON) -> None:
        if kind == "DELETED":
            self.clique = None
        else:
            self.offer(value)
        self._note()

    def _note(self) -> None:
        self.events += 1
        self._changed()


def _is_older(clique: Clique, other: Clique) -> bool:
    first, second = clique.resource_version, other.resource_version
    return first.isdecimal() and second.isdecimal() and int(first) < int(second)
