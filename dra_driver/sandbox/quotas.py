# SPDX-License-Identifier: Apache-2.0
"""ResourceQuotas: the API server refuses new objects that exceed one, and a controller counts what is used.

`scheduler.pods.quota` has the rules. Pods, ResourceClaims and ResourceClaimTemplates are counted; quotas for other
objects have no effect.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ..kube.api import ApiClient, Kind
from ..kube.kinds import PODS, RESOURCE_QUOTAS
from ..scheduler.pods.load import Reader
from ..scheduler.pods.policies import Quota
from ..scheduler.pods.quota import Quotas
from .apiserver.status import RequestError
from .apiserver.store import Store
from .loop import CLAIMS, CLASSES, JSON, TEMPLATES

_COUNTED: Final[Mapping[str, tuple[str, Kind]]] = {
    "pods": ("Pod", PODS),
    "resourceclaims": ("ResourceClaim", CLAIMS),
    "resourceclaimtemplates": ("ResourceClaimTemplate", TEMPLATES),
}
"""The kinds that quotas count, by resource: the name of the kind, and the kind."""
_READ: Final = {
    **_COUNTED,
    "deviceclasses": ("DeviceClass", CLASSES),
    "resourcequotas": ("ResourceQuota", RESOURCE_QUOTAS),
}


def _read(objects: Mapping[str, Iterable[JSON]]) -> tuple[Reader, Quotas, Sequence[Quota]]:
    """Read stored objects, by resource. The recorded usage of a quota is computed again."""
    reader = Reader()
    for resource, values in objects.items():
        name, kind = _READ[resource]
        for value in values:
            status = {} if resource == "resourcequotas" else value.get("status") or {}
            reader.add({**value, "apiVersion": kind.api_version, "kind": name, "status": status})
    return reader, Quotas(reader.snapshot(), reader.templates), reader.policies().quotas


class QuotaCheck:
    """Refuses a new object that exceeds a quota of its namespace, with 403 and the text of kube-apiserver."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, resource: str, obj: JSON) -> None:
        """Check a new object, which is valid. Raises RequestError."""
        if resource not in _COUNTED:
            return
        namespace = obj["metadata"]["namespace"]
        objects = {"resourcequotas": self._stored("resourcequotas", namespace)}
        if not objects["resourcequotas"]:
            return
        objects |= {name: self._stored(name, namespace) for name in _COUNTED}
        objects["deviceclasses"] = self._stored("deviceclasses", "")
        reader, quotas, all_quotas = _read(objects)
        name, kind = _COUNTED[resource]
        item = reader.decode({**obj, "apiVersion": kind.api_version, "kind": name})
        decision = quotas.decide(item, all_quotas)  # type: ignore[arg-type]  # decoded from a kind that is counted
        if decision.messages:
            details = {"name": obj["metadata"]["name"], "kind": resource}
            raise RequestError(403, "Forbidden", decision.messages[0], details)

    def _stored(self, resource: str, namespace: str) -> list[JSON]:
        group, slash, _ = _READ[resource][1].api_version.partition("/")
        records = self._store.collection(f"{resource}.{group}" if slash else resource).records.values()
        return [record.object for record in records if not namespace or record.namespace == namespace]


class QuotaCounter:
    """Each step writes what is used into the status of each quota."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def step(self) -> None:
        """Count. Raises ApiError."""
        stored = self._client.list(RESOURCE_QUOTAS).items
        if not stored:
            return
        objects = {resource: self._client.list(kind).items for resource, (_, kind) in _READ.items()}
        _, quotas, counted = _read({**objects, "resourcequotas": stored})
        for value, quota in zip(stored, counted, strict=True):
            used = quotas.used(quota)
            status = {"hard": value["spec"].get("hard") or {}, "used": {name: str(used[name]) for name in sorted(used)}}
            if status != value.get("status"):
                self._client.update(RESOURCE_QUOTAS, {**value, "status": status}, subresource="status")

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
