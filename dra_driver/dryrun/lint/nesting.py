# SPDX-License-Identifier: Apache-2.0
"""Documents that are small to write and large to read: aliases of aliases, and what contains itself.

No JSON, so no Kubernetes object, can be made of the ones, and none worth linting of the others.
"""

from typing import Final

import yaml

_LARGEST: Final = 1_000_000
"""Nodes with aliases written out. The API server takes requests of 3 MiB."""
_DEEPEST: Final = 100


def excess(root: yaml.Node) -> str:
    """What is too much about the document, empty when nothing is."""
    sizes: dict[int, int] = {}
    try:
        size = _size(root, sizes, 0)
    except _TooDeepError:
        return f"is nested deeper than {_DEEPEST} levels, or an alias refers to what it is part of"
    return f"has more than {_LARGEST} nodes when its aliases are written out" if size > _LARGEST else ""


class _TooDeepError(Exception):
    """A node lies too deep, as one does that contains itself."""


def _size(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    if depth > _DEEPEST:
        raise _TooDeepError
    if id(node) not in sizes:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [one for pair in node.value for one in pair]
        sizes[id(node)] = 1 + sum(_size(child, sizes, depth + 1) for child in children)
    return sizes[id(node)]
