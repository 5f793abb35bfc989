# SPDX-License-Identifier: Apache-2.0
"""The items of a snapshot that tell who uses the devices of one node. The others are not read.

The texts of the items are searched for the names of the node, of its pools and of the users of its claims. A name that
occurs in a text for another reason costs time, and changes nothing.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..documents import Select

_KIND: Final = re.compile(r'\{"apiVersion":"[^"]*","kind":"([A-Za-z]+)"')
_DEVICES: Final = ("DeviceClass", "DeviceTaintRule", "Node")
_POOL: Final = re.compile(r'"pool":\{"name":("(?:[^"\\]|\\.)*")')
_UID: Final = re.compile(r'"uid":"([^"]*)"')


def select_node(node: str) -> Select:
    """Selects what is needed for one node: slices that may concern it, all claims on their pools, and their users."""
    name = json.dumps(node)

    def concerns(text: str) -> bool:
        """Whether a slice may be of the node. A slice without a node name may be of every node."""
        return name in text or '"nodeName":' not in text or '"perDeviceNodeSelection":' in text

    def select(items: Sequence[str]) -> Iterable[int]:
        kinds = [match[1] if (match := _KIND.match(item)) else "" for item in items]
        slices = [number for number, kind in enumerate(kinds) if kind == "ResourceSlice" and concerns(items[number])]
        found = [_POOL.search(items[number]) for number in slices]
        if not any(name in items[number] for number in slices) or not all(found):
            return range(len(items))  # no such node, of which the error names others; or not written by `snapshot`
        pools = {f'"pool":{match[1]}' for match in found if match is not None}
        claims = [number for number, kind in enumerate(kinds) if kind == "ResourceClaim"]
        held = [number for number in claims if any(pool in items[number] for pool in pools)]
        users = {uid for number in held for uid in _UID.findall(items[number])}
        return sorted({*slices, *held, *_others(items, kinds, users)})

    return select


def _others(items: Sequence[str], kinds: Sequence[str], users: set[str]) -> Iterator[int]:
    """The nodes, classes and taint rules, the pods with one of the UIDs, and everything that has another form."""
    for number, kind in enumerate(kinds):
        is_user = kind == "Pod" and not users.isdisjoint(_UID.findall(items[number]))
        if is_user or kind in _DEVICES or not kind or kind.endswith("List"):
            yield number
