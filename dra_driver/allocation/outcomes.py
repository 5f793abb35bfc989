# SPDX-License-Identifier: Apache-2.0
"""The answers for all nodes of a cluster, where nodes that are alike share one decision."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .outcome import NodeOutcome


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes with the same outcome but for names; `outcome` is that of the first one."""

    outcome: NodeOutcome
    nodes: tuple[str, ...]


class Outcomes(Mapping[str, NodeOutcome]):
    """Each node's outcome by the node's name. It is written out when it is asked for; `groups` are there already."""

    def __init__(
        self, nodes: Sequence[str], groups: Sequence[Group], write: Callable[[str, Group], NodeOutcome]
    ) -> None:
        """`nodes` is the order in which to iterate; `write` makes the outcome of a node that is not a group's first."""
        self.groups = tuple(groups)
        self._nodes = nodes
        self._write = write
        self._group_of = {name: group for group in groups for name in group.nodes}
        self._written = {group.outcome.node: group.outcome for group in groups}

    def __getitem__(self, node: str) -> NodeOutcome:
        outcome = self._written.get(node)
        if outcome is None:
            outcome = self._written[node] = self._write(node, self._group_of[node])
        return outcome

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
