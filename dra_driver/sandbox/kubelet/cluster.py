# SPDX-License-Identifier: Apache-2.0
"""What kubelet does at the API server, as a protocol: tests put a cluster in memory behind it.

Objects travel as parsed JSON, except claims, which are read with the project's vocabulary.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dra_driver.resource import ResourceClaim

from .model import Pod


class ApiError(Exception):
    """The API server refused a request, or was not there (`status` 0). The text is the server's own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class PodsListed:
    """All pods of the node: whatever is not in it is gone."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class PodChanged:
    """A new pod, or another version of a known one."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """The object is deleted."""

    uid: str


PodNews = PodsListed | PodChanged | PodGone


class Cluster(Protocol):
    """Every method raises ApiError."""

    def get_claim(self, namespace: str, name: str) -> ResourceClaim:
        """A ResourceClaim as it is now, not from a cache."""

    def watch_pods(self, node: str, stop: threading.Event) -> Iterator[PodNews]:
        """The pods bound to `node`: all of them, then what changes. Ends when `stop` is set, or the watch does."""

    def patch_pod_status(self, pod: Pod, status: Mapping[str, Any]) -> None:
        """Merge `status` into the pod's; conditions merge by type. 409 when the name has another uid by now."""

    def delete_pod(self, pod: Pod) -> None:
        """Remove the object at once, without a grace period; nothing to do when it is gone already."""

    def record_event(self, pod: Pod, type: str, reason: str, message: str) -> None:
        """An Event about a pod, from kubelet; the same again is counted. `type` is Normal or Warning."""

    def apply_node(self, name: str, labels: Mapping[str, str], status: Mapping[str, Any]) -> None:
        """Make the Node, or add to the labels of the one that is there; then set its status."""

    def delete_slices(self, node: str, driver: str | None) -> None:
        """Delete the ResourceSlices of `node`, all of them or one driver's, as one deletecollection."""
