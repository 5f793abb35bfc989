# SPDX-License-Identifier: Apache-2.0
"""Failures on purpose, so that clients can be tested against them.

A `RequestFault` says which requests it hits, how many of them, and what happens to them. The object is
shared between the server's thread and a test's; its methods may be called from any.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from . import status
from .objects import Object


@dataclass(slots=True)
class RequestFault:
    """What to do to requests. Empty conditions match everything.

    `delay` in seconds comes first; then `disconnect` closes the connection without an answer, or
    `error` is answered: 409, 429, 500, 503, or any other code. `after_commit` lets the request
    take effect and fails its answer only, as a lost response does.
    """

    verb: str = ""
    """`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`."""
    resource: str = ""
    """`resourceslices`, or `resourceclaims/status`."""
    namespace: str = ""
    name: str = ""
    user: str = ""
    times: int | None = None
    """How many requests it hits; None: all of them until it is removed."""
    delay: float = 0.0
    error: int = 0
    message: str = ""
    retry_after: int = 1
    """Seconds, with 429 and 503."""
    disconnect: bool = False
    after_commit: bool = False
    hits: int = field(default=0, compare=False)
    """How many requests it has hit."""

    def matches(self, verb: str, resource: str, namespace: str, name: str, user: str) -> bool:
        """Whether the request is one of those meant."""
        asked = ((self.verb, verb), (self.resource, resource), (self.namespace, namespace), (self.name, name))
        return all(not wanted or wanted == found for wanted, found in (*asked, (self.user, user)))

    def failure(self) -> status.RequestError:
        """The error to answer with."""
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
    """What a mutating webhook does: `change` edits objects of `resource`, in the form in which they are stored, before
    they are created or updated, dry runs included.
    """

    resource: str
    change: Callable[[Object], None]
    name: str = ""
    """Of the object; empty: any."""
    hits: int = field(default=0, compare=False)
    """How many writes it has hit."""


class Faults:
    """The faults in force, first match wins, and the alterations, in the order in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[RequestFault] = []
        self._alterations: list[Alteration] = []
        self._refusing = False

    def add(self, fault: RequestFault) -> RequestFault:
        """Puts `fault` in force; keep it to read `hits` or to remove it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def alter(self, alteration: Alteration) -> Alteration:
        """Puts `alteration` in force."""
        with self._lock:
            self._alterations.append(alteration)
        return alteration

    def restore(self, alteration: Alteration) -> None:
        """Lifts one alteration; no error when it is lifted already."""
        with self._lock:
            self._alterations = [other for other in self._alterations if other is not alteration]

    def remove(self, fault: RequestFault) -> None:
        """Lifts one fault; no error when it has worn off already."""
        with self._lock:
            self._faults = [other for other in self._faults if other is not fault]

    def clear(self) -> None:
        """Lifts every fault and alteration, and accepts connections again."""
        with self._lock:
            self._faults.clear()
            self._alterations.clear()
            self._refusing = False

    def refuse_connections(self, refuse: bool = True) -> None:
        """Closes every new request's connection without an answer, as a server that is down does."""
        with self._lock:
            self._refusing = refuse

    @property
    def refusing(self) -> bool:
        """Whether connections are being refused."""
        return self._refusing

    def hit(self, verb: str, resource: str, namespace: str, name: str, user: str) -> RequestFault | None:
        """The fault that hits this request, counted."""
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
        """Alters an object that is about to be created or updated."""
        with self._lock:
            alterations = list(self._alterations)
        for one in alterations:
            if one.resource == resource and one.name in ("", obj["metadata"].get("name")):
                one.hits += 1
                one.change(obj)
