# SPDX-License-Identifier: Apache-2.0
"""The container runtime of the node, and which fields of CDI specs its release can read.

A runtime refuses a whole spec with an unknown field or version, and then it cannot find the devices of the spec.
containerd reads `additionalGids` (cdiVersion 0.7.0) from 1.7.16 on, which has release 0.7 of the
container-device-interface library. Every release of CRI-O that supports DRA reads it.
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Final

from dra_driver.kube.api import ApiClient, ApiError
from dra_driver.kube.kinds import NODES

from . import cdi

log = logging.getLogger(__name__)

FIRST_WITH_GROUP_IDS: Final = (1, 7, 16)
"""The first release of containerd that reads group IDs in specs."""

_RETRY_SECONDS = 10.0
_UPGRADE_SECONDS = 300.0


def version_of(reported: str) -> tuple[int, ...]:
    """(2, 1, 4) for `containerd://v2.1.4-k3s1`. Empty for a text without a version."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", reported.partition("://")[2])
    return tuple(map(int, found[1].split("."))) if found else ()


def reads_group_ids(reported: str) -> bool:
    """Whether a runtime reads group IDs in specs. `reported` is the Node's containerRuntimeVersion, such as
    `containerd://1.7.12`. True if the release is unknown.
    """
    version = version_of(reported)
    return not (reported.startswith("containerd://") and () < version < FIRST_WITH_GROUP_IDS)


def reported_runtime(client: ApiClient, node_name: str) -> str:
    """The containerRuntimeVersion that kubelet wrote to the Node; empty if there is none. Raises ApiError."""
    info = (client.get(NODES, node_name).get("status") or {}).get("nodeInfo") or {}
    return str(info.get("containerRuntimeVersion") or "")


class ContainerRuntime:
    """Adapts specs to the runtime of this node. `report` returns the Node's containerRuntimeVersion or raises ApiError.
    It is called when a spec has group IDs, until the runtime is known to read them. Safe for several threads.
    """

    def __init__(self, report: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._reported = ""
        self._known = False
        self._next_read = 0.0

    @property
    def is_too_old(self) -> bool:
        """Whether group IDs are left out, as far as the runtime is known."""
        return not reads_group_ids(self._reported)

    def readable(self, spec: cdi.Spec) -> cdi.Spec:
        """The spec without what the runtime cannot read."""
        if not cdi.has_group_ids(spec):
            return spec
        with self._lock:
            self._read()
        return cdi.without_group_ids(spec) if self.is_too_old else spec

    def _read(self) -> None:
        if (self._known and not self.is_too_old) or self._clock() < self._next_read:
            return
        try:
            reported = self._report()
        except ApiError as error:
            log.warning("the release of the container runtime cannot be read from the Node: %s", error)
            self._next_read = self._clock() + _RETRY_SECONDS
            return
        if reported != self._reported and not reads_group_ids(reported):
            log.warning(
                "%s cannot read group IDs in CDI specs, so they are left out: containers of users other than root"
                " cannot open device nodes that belong to a group; upgrade containerd to %s or newer",
                reported,
                ".".join(map(str, FIRST_WITH_GROUP_IDS)),
            )
        self._reported, self._known = reported, True
        self._next_read = self._clock() + _UPGRADE_SECONDS
