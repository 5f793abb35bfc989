# SPDX-License-Identifier: Apache-2.0
"""Writes the labels of the node (`dra_driver.gpu.labels`), for workloads that select nodes by them.

The labels reach the node through node feature discovery (NFD): from a NodeFeature object, or from a file on the node.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dra_driver.errors import DriverError, NotAFileError
from dra_driver.gpu.labels import PREFIX, Labels
from dra_driver.kube.api import ApiClient, NotFoundError
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import NODE_FEATURES, ROLES
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import Count, contained
from dra_driver.process.files import read_file, remove_file, write_file
from dra_driver.process.worker import Worker

log = logging.getLogger(__name__)

NODE_NAME_LABEL = "nfd.node.kubernetes.io/node-name"
"""NFD finds the node of a NodeFeature object by this label."""

_STOP_SECONDS = 10.0  # longer than a request to an API server that answers


class NodeFeature:
    """Writes a NodeFeature object.

    Its owner is the Role that permits this. When the feature is disabled or the chart is uninstalled, Helm deletes the
    Role, and Kubernetes deletes the objects. NFD deletes the objects of nodes that no longer exist. When this process
    ends, the object stays for the next one.
    """

    def __init__(self, client: ApiClient, node: str, role: str) -> None:
        """`role` is NAMESPACE/NAME. The object is in that namespace."""
        self._client = client
        self._node = node
        self._namespace, _, self._role = role.partition("/")
        self._name = f"{PREFIX.rstrip('/')}-{node}"

    def write(self, labels: Labels) -> None:
        """Patch the object, or create it. A patch without a difference changes nothing in the API server."""
        role = self._client.get(ROLES, self._role, self._namespace)["metadata"]
        owner = {"apiVersion": ROLES.api_version, "kind": "Role", "name": role["name"], "uid": role["uid"]}
        value: JSON = {
            "metadata": {"name": self._name, "labels": {NODE_NAME_LABEL: self._node}, "ownerReferences": [owner]},
            "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": labels},
        }
        try:
            stored = self._patch(value)
        except NotFoundError:
            value = {"apiVersion": NODE_FEATURES.api_version, "kind": "NodeFeature", **value}
            stored = self._client.create(NODE_FEATURES, value, self._namespace)
        if stale := (stored["spec"].get("labels") or {}).keys() - labels.keys():
            self._patch({"spec": {"labels": dict.fromkeys(stale)}})

    def _patch(self, value: Mapping[str, object]) -> JSON:
        return self._client.patch(NODE_FEATURES, self._name, value, namespace=self._namespace)


class FeatureFile:
    """Writes a file for NFD's worker on this node. The process that wrote it last removes it when it ends, so it stays
    if another process has taken over in a rolling update.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer = f"# written by dra-controller {uuid.uuid4()}\n"

    def write(self, labels: Labels) -> None:
        """Write the file, if its content differs."""
        text = self._writer + "".join(f"{name}={value}\n" for name, value in labels.items())
        if self._content() != text:
            write_file(self._file, text.encode(), self._file.with_name(f".{self._file.name}"), 0o644)

    def remove(self) -> None:
        """Remove the file, if this process wrote it last."""
        try:
            if self._content().startswith(self._writer):
                remove_file(self._file)
        except OSError as error:
            log.warning("the labels of the node stay: %s", error)

    def _content(self) -> str:
        try:
            return read_file(self._file).decode(errors="replace")
        except (FileNotFoundError, NotAFileError):
            return ""


@dataclass(frozen=True, slots=True)
class LabelTiming:
    """How long the labeler waits, in seconds."""

    compare: float = 600.0  # between writes without a change, which restore what somebody else changed
    first_retry: float = 1.0
    longest_retry: float = 300.0


class Labeler:
    """Keeps the labels up to date between `start` and `stop`, on a thread of its own: the API server may be slow.

    `output` writes labels, and may raise DriverError or OSError. `labels` returns the current labels, or None while
    they are unknown. `unexpected` counts unexpected errors.
    """

    def __init__(
        self,
        output: Callable[[Labels], None],
        labels: Callable[[], Labels | None],
        unexpected: Count,
        timing: LabelTiming | None = None,
    ) -> None:
        self._output = output
        self._labels = labels
        self._unexpected = unexpected
        self._timing = timing or LabelTiming()
        self._backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        self._written: Labels | None = None
        self._due = 0.0
        self._worker = Worker("make labels", self._round, count=unexpected)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def wake(self) -> None:
        """The labels may have changed."""
        self._worker.wake()

    def stop(self) -> None:
        """Stop the thread, and wait for its current write."""
        self._worker.stop(_STOP_SECONDS)

    def _round(self) -> float | None:
        """Write when the labels change, and when a write is due. While they are unknown, wait for a change."""
        labels = self._labels()
        if labels is None:
            return None
        if labels != self._written or time.monotonic() >= self._due:
            self._written, self._due = labels, self._write(labels) + time.monotonic()
        return max(0.0, self._due - time.monotonic())

    def _write(self, labels: Labels) -> float:
        """Write, and return the seconds until the next write."""
        pause = self._backoff.pause()
        with contained("write labels", "of the node", self._unexpected):
            try:
                self._output(labels)
            except (DriverError, OSError) as error:
                log.warning(
                    "the labels of the node are not written: %s", error, extra={"retry_seconds": round(pause, 1)}
                )
            else:
                self._backoff.reset()
                pause = self._timing.compare
        return pause
