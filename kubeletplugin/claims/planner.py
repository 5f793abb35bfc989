# SPDX-License-Identifier: Apache-2.0
"""From the name of a claim to its plan."""

from ..node.node import Node
from .call import Call
from .model import ClaimRef, Driver, Plan
from .reader import FetchClaim, is_gone


class Planner:
    """Plans claims of a driver on a node. `fetch` reads a claim from the API server."""

    def __init__(self, driver: Driver, node: Node, fetch: FetchClaim) -> None:
        self.driver = driver
        self.node = node
        self._fetch = fetch

    def plan(self, ref: ClaimRef, call: Call) -> Plan:
        """The plan of an allocated claim. Raises ApiError, PrepareError, NoDriverError or NvmlError."""
        claim = self._fetch(ref)
        call.check()
        plan = self.driver.plan(self.node, ref, claim)
        call.check()
        return plan

    def is_gone(self, ref: ClaimRef) -> bool | None:
        """Whether the API server has no such claim. None if it does not answer."""
        return is_gone(self._fetch, ref)
