# SPDX-License-Identifier: Apache-2.0
"""Faults that tests inject into requests.

A `RequestFault` selects requests and says what happens to them. The server's thread and the test share the object. All
methods may be called from any thread.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from . import status
from .objects import Object


@dataclass(slots=True)
class RequestFault:
    """A fault. Empty conditions match every request.

    The server first waits `delay` seconds. Then it either closes the connection without an answer (`disconnect`),
    or answers with the HTTP status `error`. With `after_commit`, the request takes effect and only its answer
    fails, like a lost response.
    """

    verb: str = ""
    """`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`."""
    resource: str = ""
    """`resourceslices`, or `resourceclaims/status`."""
    namespace: str = ""
    name: str = ""
    user: str = ""
    times: int | None = None
    """How many requests the fault hits. None: all requests, until the fault is removed."""
    delay: float = 0.0
    error: int = 0
    message: str = ""
    retry_after: int = 1
    """The seconds of the Retry-After header of 429 and 503."""
    disconnect: bool = False
    after_commit: bool = False
    hits: int = field(default=0, compare=False)
    """How many requests the fault has hit."""

    def matches(self, verb: str, resource: str, namespace: str, name: str, user: str) -> bool:
        """Return whether the fault hits the request."""
        asked = ((self.verb, verb), (self.resource, resource), (self.namespace, namespace), (self.name, name))
        return all(not wanted or wanted == found for wanted, found in (*asked, (self.user, user)))

    def failure(self) -> status.RequestError:
        """Return the error to answer with."""
        match self.error:
            case 409:
                return status.RequestError(409, "Conflict", self.message or f"injected fault: {status.MODIFIED}")
            case 429:
                return status.too_many_requests(self.retry_after, self.message or "injected fault: too many requests")
            case 503:
                details = {"retryAfterSeconds": self.retry_after}
                text = self.message or "injected fault: the server is currently unable to handle the request"
                return status.RequestError(503, "ServiceUnavailable", text, details)
            case 500:
                return status.internal(self.message or "injected fault")
        return status.RequestError(self.error, "", self.message or "injected fault")


@dataclass(slots=True)
class Alteration:
    """A change that the server makes to objects, like a mutating webhook.

    `change` edits objects of `resource`, in their stored form, before they are created or updated. This includes
    dry runs.
    """

    resource: str
    change: Callable[[Object], None]
    name: str = ""
    """The name of the object. Empty: any object."""
    hits: int = field(default=0, compare=False)
    """How many writes the alteration has changed."""


class Faults:
    """The active faults, of which the first match hits a request, and the active alterations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[RequestFault] = []
        self._alterations: list[Alteration] = []
        self._refusing = False

    def add(self, fault: RequestFault) -> RequestFault:
        """Activate `fault` and return it. Its `hits` count the requests; `remove` ends it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def alter(self, alteration: Alteration) -> Alteration:
        """Activate `alteration` and return it."""
        with self._lock:
            self._alterations.append(alteration)
        return alteration

    def restore(self, alteration: Alteration) -> None:
        """End one alteration. Does nothing if it has ended already."""
        with self._lock:
            self._alterations = [other for other in self._alterations if other is not alteration]

    def remove(self, fault: RequestFault) -> None:
        """End one fault. Does nothing if it has ended already."""
        with self._lock:
            self._faults = [other for other in self._faults if other is not fault]

    def clear(self) -> None:
        """End all faults and alterations, and accept connections again."""
        with self._lock:
            self._faults.clear()
            self._alterations.clear()
            self._refusing = False

    def refuse_connections(self, refuse: bool = True) -> None:
        """Close the connection of every new request without an answer, like a server that is down."""
        with self._lock:
            self._refusing = refuse

    @property
    def refusing(self) -> bool:
        """Whether the server refuses connections."""
        return self._refusing

    def hit(self, verb: str, resource: str, namespace: str, name: str, user: str) -> RequestFault | None:
        """Return the fault that hits this request and count the hit, or return None."""
        if not self._faults:
            return None
        with self._lock:
            for fault in self._faults:
                if fault.matches(verb, resource, namespace, name, user):
                    fault.hits += 1
                    if fault.times is not None and fault.hits >= fault.times:
                        self._faults.remove(fault)
                    return fault
        return None

    def admit(self, resource: str, obj: Object) -> None:
        """Apply the alterations to an object before it is created or updated."""
        with self._lock:
            alterations = list(self._alterations)
        for one in alterations:
            if one.resource == resource and one.name in ("", obj["metadata"].get("name")):
                one.hits += 1
                one.change(obj)
