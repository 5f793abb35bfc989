# SPDX-License-Identifier: Apache-2.0
"""Writes the objects of domains, as long as this process is the leader, and counts the writes.

A watch may lag. So updates name the resource version and deletes the UID. Objects may carry the finalizer of NVIDIA's
driver, whose objects this one takes over. It is removed.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from prometheus_client import Counter

from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.kube.api import ApiClient, ConflictError, Kind, NotFoundError
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import NETWORK_POLICIES

from ..collection import Collection
from .facts import StoredFacts
from .objects import FINALIZER, Desired

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
Place = tuple[str, str]
"""The kind and the name of an object of a domain."""


class NotLeaderError(Exception):
    """The process is no longer the leader, and must not write."""


class ObjectWriter:
    """The writes of one term of leadership, which ends when `stop` is set. `writes` counts them by resource and verb.

    It remembers each object as it was sent and as the server stored it. Losing that costs only requests.
    """

    def __init__(self, client: ApiClient, writes: Counter, stop: threading.Event) -> None:
        self.client = client
        self._writes = writes
        self._stop = stop
        self._objects: dict[str, dict[Place, tuple[JSON, object]]] = {}  # sent and stored, by the UID of the domain

    def create(self, kind: Kind, value: JSON, namespace: str) -> JSON:
        """Create an object, and return it. Raises ApiError and NotLeaderError, like all methods."""
        return self._write("create", self.client.create, kind, value, namespace)

    def update(self, kind: Kind, value: JSON) -> JSON:
        """Replace an object, and return it."""
        return self._write("update", self.client.update, kind, value)

    def patch(self, kind: Kind, name: str, value: JSON, *, namespace: str = "", subresource: str = "") -> JSON:
        """Change the given fields of an object, and return it."""
        place = {"namespace": namespace, "subresource": subresource}
        return self._write("patch", self.client.patch, kind, name, value, **place)

    def ensure(self, collection: Collection[StoredFacts], desired: Desired, found: StoredFacts | None) -> None:
        """Create, change or replace an object of a domain. `found` is the stored one."""
        if found is not None and found.is_deleted:
            self.strip(desired.kind, found.namespace, found.name, found.uid, found.finalizers)
            return  # it is created again when it is gone
        if found is None:
            if desired.kind == NETWORK_POLICIES and not collection.listed:
                return  # an API server without policies
            self._create(collection, desired)
        elif FINALIZER in found.finalizers or not self._is_right(desired, found):
            if desired.needs_replacement(found.content):
                self.delete(collection, found)
                self._create(collection, desired)
                return
            change = desired.change(found)
            try:
                answer = self.patch(desired.kind, desired.name, change, namespace=desired.namespace)
            except NotFoundError:
                collection.forget(found.uid)  # which makes this domain be looked at again
                return
            self._wrote(collection, desired, answer)

    def _is_right(self, desired: Desired, found: StoredFacts) -> bool:
        """Whether an object is as it should be, or as the server stored it when it got that: a webhook may change what
        it is given, and the server the form of a quantity.
        """
        if desired.is_stored(found.content):
            return True
        sent, stored = self._sent(desired).get(_place(desired), (None, None))
        return sent == desired.value and stored == found.content

    def _create(self, collection: Collection[StoredFacts], desired: Desired) -> None:
        try:
            answer = self.create(desired.kind, desired.value, desired.namespace)
        except ConflictError:
            # The watch lags, or the object lost the label by which it is watched.
            collection.store(self.client.get(desired.kind, desired.name, desired.namespace))
            raise
        self._wrote(collection, desired, answer)

    def _wrote(self, collection: Collection[StoredFacts], desired: Desired, answer: JSON) -> None:
        collection.store(answer)
        found = collection.get(answer["metadata"]["uid"])
        if found is not None:
            self._sent(desired)[_place(desired)] = (desired.value, found.content)

    def _sent(self, desired: Desired) -> dict[Place, tuple[JSON, object]]:
        return self._objects.setdefault(desired.value["metadata"]["labels"][DOMAIN_LABEL], {})

    def delete(self, collection: Collection[Any], found: StoredFacts) -> None:
        """Delete an object."""
        self.strip(collection.kind, found.namespace, found.name, found.uid, found.finalizers)
        if found.is_deleted:
            return
        with contextlib.suppress(NotFoundError):
            self._write("delete", self.client.delete, collection.kind, found.name, found.namespace, uid=found.uid)
        if not set(found.finalizers) - {FINALIZER}:
            collection.forget(found.uid)
        log.info("%s %s/%s: deleted", collection.kind.plural, found.namespace, found.name)

    def strip(self, kind: Kind, namespace: str, name: str, uid: str, finalizers: tuple[str, ...]) -> None:
        """Remove the finalizer of NVIDIA's driver from an object."""
        if FINALIZER not in finalizers:
            return
        place = f"/metadata/finalizers/{finalizers.index(FINALIZER)}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": place, "value": FINALIZER},
            {"op": "remove", "path": place},
        ]
        try:
            self._write("patch", self.client.json_patch, kind, name, operations, namespace=namespace)
        except NotFoundError:
            log.debug("%s %s/%s is gone", kind.plural, namespace, name)

    def forget(self, domain: str) -> None:
        """Nothing is left of the domain with this UID."""
        self._objects.pop(domain, None)

    def _write(
        self, verb: str, work: Callable[Concatenate[Kind, P], R], kind: Kind, /, *given: P.args, **more: P.kwargs
    ) -> R:
        """Do one write of the client, and count it. Raises NotLeaderError."""
        if self._stop.is_set():
            raise NotLeaderError
        result = work(kind, *given, **more)
        self._writes.labels(kind.plural, verb).inc()
        return result


def _place(desired: Desired) -> Place:
    return desired.kind.plural, f"{desired.namespace}/{desired.name}"
