# SPDX-License-Identifier: Apache-2.0
"""The base class of workload controllers: owners, pods from templates, and counts of ready pods."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...kube.api import ApiClient, ApiError, Kind
from ...kube.kinds import PODS
from ..loop import JSON

HASH_LABEL = "controller-revision-hash"
"""The label of a StatefulSet's or DaemonSet's pod with the revision of its template."""


class Workloads:
    """The controller of one kind of workload. Subclasses define the kind, and what to do about each object."""

    kind: Kind
    name: str
    """The name of the kind in owner references."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    def step(self) -> None:
        """Process all workloads of the kind. Raises the first ApiError after all of them were processed."""
        found = [item for item in self.client.list(self.kind).items if not is_going(item)]
        if not found:
            return
        work = self.prepare()
        failures: list[ApiError] = []
        for workload in found:
            try:
                work(workload)
            except ApiError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def close(self) -> None:
        """Do nothing: the controller has no resources."""

    def prepare(self) -> Callable[[JSON], None]:
        """Read the objects that the step needs, and return the function that processes one workload."""
        pods = self.client.list(PODS).items
        return lambda workload: self.sync(workload, [pod for pod in pods if is_owned(pod, workload)])

    def sync(self, workload: JSON, pods: list[JSON]) -> None:
        """Create and delete pods as needed, and write the workload's status. Raises ApiError."""
        raise NotImplementedError

    def metadata(self, owner: JSON, template: JSON, **more: Any) -> JSON:
        """Return metadata, without a name, for an object that `owner` creates. `more` adds labels and annotations."""
        meta = template.get("metadata") or {}
        reference = {
            "apiVersion": self.kind.api_version,
            "kind": self.name,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        return {
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(meta.get("labels") or {}), **more.get("labels", {})},
            "annotations": {**(meta.get("annotations") or {}), **more.get("annotations", {})},
            "ownerReferences": [reference],
        }

    def create_pod(
        self, owner: JSON, *, name: str = "", spec: Mapping[str, Any] | None = None, **more: Mapping[str, str]
    ) -> None:
        """Create a pod from the owner's template. `spec`, `labels` and `annotations` replace single fields."""
        template = owner["spec"]["template"]
        meta = self.metadata(owner, template, **more)
        named = {"name": name} if name else {"generateName": f"{owner['metadata']['name']}-"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, **named},
            "spec": {**template["spec"], **(spec or {})},
        }
        self.client.create(PODS, pod, owner["metadata"]["namespace"])

    def delete(self, kind: Kind, objects: Iterable[JSON]) -> None:
        """Delete the objects that are not being deleted yet."""
        for object_ in objects:
            if not is_going(object_):
                meta = object_["metadata"]
                self.client.delete(kind, meta["name"], meta["namespace"], uid=meta["uid"])

    def write_status(self, workload: JSON, status: JSON) -> None:
        """Write the status if it has changed. Fields that are None are omitted."""
        wanted = {key: value for key, value in status.items() if value is not None}
        if wanted != workload.get("status"):
            self.client.update(self.kind, {**workload, "status": wanted}, subresource="status")


def is_going(workload: JSON) -> bool:
    """Return whether the object is being deleted."""
    return bool(workload["metadata"].get("deletionTimestamp"))


def is_owned(workload: JSON, owner: JSON) -> bool:
    """Return whether `owner` is the controller of the object."""
    references = workload["metadata"].get("ownerReferences") or []
    return any(each.get("controller") and each["uid"] == owner["metadata"]["uid"] for each in references)


def is_ready(pod: JSON) -> bool:
    """Return whether all containers of the pod are ready, and it is not being deleted."""
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and not is_going(pod)


def count_ready(pods: Iterable[JSON]) -> int:
    """Return how many of the pods are ready."""
    return sum(1 for pod in pods if is_ready(pod))


def revision_of(template: JSON) -> str:
    """Return a hash of a template: ten letters and digits."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def share(value: int | str | None, total: int, *, up: bool) -> int:
    """Return an absolute number, or a percentage of `total` rounded up or down."""
    if isinstance(value, str) and value.endswith("%"):
        part = int(value[:-1]) * total / 100
        return math.ceil(part) if up else math.floor(part)
    return int(value or 0)
