# SPDX-License-Identifier: Apache-2.0
"""The pods that use claims, and the owners of the pods."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...kube.resource import AllocatedDevice, ResourceClaim
from ...scheduler.pods import Pod
from ..documents import each, within
from .model import DeviceConsumer

_HASH_LABEL: Final = "pod-template-hash"
"""The label that a Deployment gives its ReplicaSets, and these their pods. The name of a ReplicaSet ends with it."""

DeviceKey = tuple[str, str, str]
"""(driver, pool, device)."""


@dataclass(frozen=True, slots=True)
class ConsumerPod:
    """What is known of a pod that may use devices. `owner` is kind and name; `started` is RFC 3339, or empty."""

    namespace: str
    name: str
    uid: str
    owner: str
    started: str

    @staticmethod
    def of_object(value: Mapping[str, Any]) -> "ConsumerPod":
        """The facts of a pod as JSON."""
        metadata = within(value, "metadata")
        controllers = [owner for owner in each(metadata, "ownerReferences") if owner.get("controller")]
        kind, name = (controllers[0].get("kind"), controllers[0].get("name")) if controllers else ("", "")
        return ConsumerPod(
            str(metadata.get("namespace") or "default"),
            str(metadata.get("name") or ""),
            str(metadata.get("uid") or ""),
            _owner(str(kind or ""), str(name or ""), within(metadata, "labels")),
            str(within(value, "status").get("startTime") or ""),
        )

    @staticmethod
    def of_pod(pod: Pod) -> "ConsumerPod":
        """The facts of a decoded pod."""
        return ConsumerPod(pod.namespace, pod.name, pod.uid, _owner(*pod.owner, pod.labels), pod.started)


def _owner(kind: str, name: str, labels: Mapping[str, Any]) -> str:
    """The controller of a pod, or its Deployment if the controller is a ReplicaSet of one."""
    suffix = f"-{labels.get(_HASH_LABEL)}"
    if kind == "ReplicaSet" and name.endswith(suffix):
        return f"Deployment {name.removesuffix(suffix)}"
    return f"{kind} {name}" if kind and name else ""


class DeviceConsumers:
    """The uses of each device."""

    def __init__(self, claims: Iterable[ResourceClaim], pods: Iterable[ConsumerPod]) -> None:
        self._pods = {(pod.namespace, pod.name): pod for pod in pods}
        self._uses: dict[DeviceKey, list[DeviceConsumer]] = defaultdict(list)
        for claim in claims:
            for result in claim.allocation.results if claim.allocation is not None else ():
                self._uses[result.driver, result.pool, result.device].append(self._use(claim, result))

    def of(self, driver: str, pool: str, device: str) -> tuple[DeviceConsumer, ...]:
        """The uses of a device, in the order of the claims."""
        return tuple(self._uses.get((driver, pool, device), ()))

    def _use(self, claim: ResourceClaim, result: AllocatedDevice) -> DeviceConsumer:
        namespace = claim.metadata.namespace or "default"
        names, owners, started = [], [], []
        for consumer in claim.reserved_for:
            if consumer.resource != "pods" or consumer.api_group:
                owners.append(f"{consumer.resource} {consumer.name}")
                continue
            names.append(f"{namespace}/{consumer.name}")
            pod = self._pods.get((namespace, consumer.name))
            if pod is not None and (pod.uid == consumer.uid or not pod.uid):
                owners.append(pod.owner)
                started.append(pod.started)
        return DeviceConsumer(
            f"{namespace}/{claim.metadata.name}",
            result.request,
            tuple(names),
            ", ".join(dict.fromkeys(filter(None, owners))),
            min(filter(None, started), default=claim.metadata.creation_timestamp),
            tuple((name, str(amount)) for name, amount in result.consumed_capacity.items()),
            result.admin_access,
        )
