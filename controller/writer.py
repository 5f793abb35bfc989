# SPDX-License-Identifier: Apache-2.0
"""Writing slices one by one: what goes wrong with one of them holds back no other."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dra_driver.cluster import ApiClient, ApiError, ConflictError, Kind, NotFoundError, StatusError
from dra_driver.cluster.features import dropped
from dra_driver.containment import Count, contained
from dra_driver.resource import ResourceSlice
from dra_driver.resource.codec import Dialect, encode_slice
from dra_driver.resource.features import SliceFeatures
from dra_driver.resource.validation import slice_problems

from .attempts import Attempts, Problem, Why
from .differences import describe_difference
from .reconcile import Writes, as_sent
from .stored import StoredSlices

log = logging.getLogger(__name__)

_WHOLE_SERVER = frozenset((401, 404, 429, 502, 503, 504))
"""Errors that a request about another slice would get, too."""


@dataclass(slots=True)
class Written:
    """What came of some writes. `failures` is how many of them did not do what they should."""

    failures: int = 0
    conflict: bool = False
    """Somebody else wrote, and the watch has not told yet."""
    dropped: frozenset[str] = frozenset()
    """Flags of SliceFeatures whose fields an answer lacked."""


class SliceWriter:
    """Sends slices to one API server, and notes what came of it in `stored` and `attempts`. `unexpected` counts defects
    of this driver that cost one slice.
    """

    def __init__(
        self,
        client: ApiClient,
        target: tuple[Kind, Dialect],
        stored: StoredSlices,
        attempts: Attempts,
        unexpected: Count,
    ) -> None:
        self._client = client
        self._kind, self._dialect = target
        self._stored = stored
        self._attempts = attempts
        self._unexpected = unexpected

    def write(self, writes: Writes, features: SliceFeatures) -> Written:
        """Carry out the writes for a server with these features. Raises ApiError when no other would succeed either."""
        began = time.monotonic()
        written = Written()
        for one in writes.deletes:
            self._try(one.metadata.name, None, partial(self._delete, one), written)
        for one in (*writes.updates, *writes.creates):
            self._try(one.metadata.name, one, partial(self._send, one, features, written), written)
        log.info(
            "published slices" if not written.failures else "published some slices",
            extra={
                "slices_created": len(writes.creates),
                "slices_updated": len(writes.updates),
                "slices_deleted": len(writes.deletes),
                "failures": written.failures,
                "devices": sum(len(one.devices) for one in writes.updates + writes.creates),
                "seconds": round(time.monotonic() - began, 3),
            },
        )
        return written

    def _try(self, name: str, sent: ResourceSlice | None, act: Callable[[], Problem | None], written: Written) -> None:
        """One write, within the boundary that keeps its failure from the other slices."""
        problem: Problem | None = Problem(Why.FAILED, "this driver failed unexpectedly, see the log of dra-controller")
        with contained("publish slice", name, self._unexpected, expected=(ApiError,)), self._stored.writing(name):
            problem = self._answered(act, written)
        pause = self._attempts.note(name, sent, problem)
        if problem is not None:
            written.failures += 1
            log.warning("slice %s: %s", name, problem.text, extra={"retry_seconds": round(pause, 1)})

    def _answered(self, act: Callable[[], Problem | None], written: Written) -> Problem | None:
        try:
            return act()
        except ConflictError as error:
            written.conflict = True
            return Problem(Why.REFUSED, str(error))
        except StatusError as error:
            if error.status in _WHOLE_SERVER:
                raise
            return Problem(Why.REFUSED, str(error))

    def _send(self, one: ResourceSlice, features: SliceFeatures, written: Written) -> Problem | None:
        for broken in slice_problems(one, features):
            log.error("slice %s breaks a rule of the API: %s", one.metadata.name, broken)
        value = encode_slice(one, self._dialect)
        if not one.metadata.resource_version:
            answer = self._client.create(self._kind, value)
        else:
            try:
                answer = self._client.update(self._kind, value)
            except NotFoundError as error:
                written.conflict = True  # somebody deleted it
                return Problem(Why.REFUSED, str(error))
        stored = self._stored.wrote(answer)
        if as_sent(one, stored):
            return None
        written.dropped |= dropped(one, stored)
        difference = describe_difference(one, stored, self._dialect)
        return Problem(Why.CHANGED, f"the API server changed {difference}; a mutating webhook may do that")

    def _delete(self, one: ResourceSlice) -> Problem | None:
        try:
            self._client.delete(self._kind, one.metadata.name, uid=one.metadata.uid)
        except NotFoundError:
            log.debug("slice %s was gone already", one.metadata.name)
        self._stored.deleted(one.metadata.name)
        return None
