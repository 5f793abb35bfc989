# SPDX-License-Identifier: Apache-2.0
"""Equal nodes and equal GPUs as one, so that a large cluster stays readable."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .model import GpuCounts, UsedGpu, UsedNode


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are shown as one."""

    nodes: tuple[UsedNode, ...]

    @property
    def first(self) -> UsedNode:
        """The node that is shown."""
        return self.nodes[0]

    @property
    def name(self) -> str:
        """The name of the node, or `node-1 and 7 more`."""
        name = self.first.name or "(several nodes)"
        return f"{name} and {len(self.nodes) - 1} more" if len(self.nodes) > 1 else name

    @property
    def counts(self) -> GpuCounts:
        """The numbers of the GPUs of all nodes."""
        return GpuCounts.sum(node.counts for node in self.nodes)


def joined_by_use(nodes: Iterable[UsedNode]) -> list[NodeGroup]:
    """The nodes in their order. Nodes with equal GPUs and devices, and the same users, are one."""
    return _joined(nodes, lambda node: (node.total, tuple((gpu.name, gpu.look) for gpu in node.gpus), node.others))


def joined_by_numbers(nodes: Iterable[UsedNode]) -> list[NodeGroup]:
    """The nodes in their order. Nodes with equal numbers of GPUs of the same models are one."""
    return _joined(nodes, lambda node: (node.models, node.total, node.counts))


def _joined(nodes: Iterable[UsedNode], look: Callable[[UsedNode], Hashable]) -> list[NodeGroup]:
    groups: dict[Hashable, list[UsedNode]] = {}
    for node in nodes:
        groups.setdefault((look(node), node.problems, not node.name), []).append(node)
    return [NodeGroup(tuple(members)) for members in groups.values()]


def joined_gpus(gpus: Sequence[UsedGpu]) -> Iterator[tuple[str, UsedGpu]]:
    """The GPUs in their order with their names. Neighbours that look alike are one: `gpu-1 to gpu-7`."""
    # Of consecutive numbers, all have the same distance from their positions.
    for _, run in groupby(enumerate(gpus), lambda item: (_number(item[1].name) - item[0], item[1].look)):
        first, *more = (gpu for _, gpu in run)
        yield f"{first.name} to {more[-1].name}" if more else first.name, first


def _number(name: str) -> int:
    """The number at the end of a name, 0 if there is none."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits or 0)
