# SPDX-License-Identifier: Apache-2.0
"""What the checks of kinds and features are given by the command `check`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_driver.gpu.inventory import Inventory
from dra_driver.gpu.policy import NodePolicy

from .claims.model import Record
from .finding import CheckResult
from .node.node import Node


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """The node with its policy, and the readable records of its claims. `inventory` is None if NVML does not answer,
    which is a finding of its own.
    """

    node: Node
    policy: NodePolicy
    records: tuple[Record, ...]
    inventory: Inventory | None


Check = Callable[[CheckFacts], Iterable[CheckResult]]
"""A check of a kind or feature. It yields nothing if the node does not use the kind or feature."""
