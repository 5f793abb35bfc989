# SPDX-License-Identifier: Apache-2.0
"""The taint that keeps pods from a Node until its slices are published."""

import logging
from collections.abc import Callable

from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES

log = logging.getLogger(__name__)


class StartupTaint:
    """The taints with the key `key` on a Node. `others_are_ready` tells whether all other drivers have published."""

    def __init__(
        self, client: ApiClient, node_name: str, key: str, others_are_ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._key = key
        self._others_are_ready = others_are_ready
        self._untainted = ""  # the UID of the Node that has no such taint anymore

    def published(self, node_uid: str) -> None:
        """All slices of the Node with this UID are published: allow pods on the Node, on which the scheduler would not
        have found devices before. It is done once, so a taint that an administrator adds later stays. Raises ApiError.
        """
        if self._untainted != node_uid and self._others_are_ready():
            self._remove()
            self._untainted = node_uid

    def _remove(self) -> None:
        node = self._client.get(NODES, self._node_name)
        taints = node.get("spec", {}).get("taints") or []
        kept = [taint for taint in taints if taint["key"] != self._key]
        if kept != taints:
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}  # somebody may add a taint meanwhile
            self._client.patch(NODES, self._node_name, {"metadata": version, "spec": {"taints": kept}})
            log.info("removed the start-up taint", extra={"key": self._key})
