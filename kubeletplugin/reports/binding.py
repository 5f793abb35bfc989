# SPDX-License-Identifier: Apache-2.0
"""Binding conditions: a pod is bound to this node only after the plugin has checked its devices (KEP-5007).

If the policy enables it, devices are published with conditions that the scheduler waits for before it binds a pod.
The plugin checks that the device still exists on the node, that the NVIDIA driver answers, and that the device has no
finding that the claim does not tolerate. If so, it sets the condition to True, once. If not, it sets the failure
condition, and the scheduler takes another device instead of leaving the pod where it cannot start. Claims have no
node to select by, so the plugin watches the claims of the whole cluster, but only while the policy enables binding
conditions.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.gpu.devices import AVAILABLE, UNAVAILABLE
from dra_driver.kube.api import ApiClient, ApiError, Connection, NotFoundError, Watcher, newest_dialect
from dra_driver.kube.kinds import claims_of
from dra_driver.kube.resource import DeviceToleration
from dra_driver.process.backoff import Backoff
from dra_driver.process.containment import contained
from dra_driver.process.worker import Worker

from ..claims.boundary import ClaimBoundary
from ..claims.model import ClaimRef
from .devicestatus import JSON, ClaimStatusApi, Part, condition, entries, entry, results

log = logging.getLogger(__name__)

PART: Final = Part("dra-kubeletplugin-binding", frozenset({AVAILABLE, UNAVAILABLE}), data=False)
"""The two conditions, beside the status of the device."""

_RETRY_SECONDS: Final = 2.0
_LONGEST_SECONDS: Final = 300.0
_POLICY_SECONDS: Final = 5.0

Fitness = Callable[[str, Sequence[DeviceToleration]], str | None]
"""Why a device cannot be used by a claim with these tolerations, or None. Raises LookupError if that is currently
unknown.
"""


def binding_entries(claim: Mapping[str, Any], pool: str, fitness: Fitness, now: str) -> list[JSON] | None:
    """Entries of `status.devices` with the conditions that the scheduler waits for. None if it waits for none, or they
    are already set. Raises LookupError like `fitness`.
    """
    told = {each.get("type") for found in entries(claim, pool) for each in found.get("conditions") or ()}
    if not told.isdisjoint((AVAILABLE, UNAVAILABLE)):
        return None  # the conditions of a claim are set all at once
    wanted: list[JSON] = []
    for result in results(claim, pool):
        if _waits(result):
            problem = fitness(result["device"], _tolerations(result))
            wanted.append(entry(result, [_verdict(problem, now)]))
    return wanted or None


def _waits(result: Mapping[str, Any]) -> bool:
    return AVAILABLE in (result.get("bindingConditions") or ())


def _verdict(problem: str | None, now: str) -> JSON:
    if problem is not None:
        return condition(UNAVAILABLE, True, "DeviceUnavailable", problem, now)
    return condition(AVAILABLE, True, "DeviceAvailable", "the device exists and has no problems", now)


def _tolerations(result: Mapping[str, Any]) -> list[DeviceToleration]:
    fields = ("key", "operator", "value", "effect")
    return [
        DeviceToleration(**{name: toleration[name] for name in fields if toleration.get(name)})
        for toleration in result.get("tolerations") or ()
    ]


def _ref(claim: JSON) -> ClaimRef:
    meta = claim["metadata"]
    return ClaimRef(meta.get("namespace", ""), meta.get("name", ""), meta["uid"])


@dataclass(eq=False, slots=True)
class _Waiting:
    """A claim that waits for its conditions. It is checked again after `due` (monotonic seconds)."""

    claim: JSON
    due: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(_RETRY_SECONDS, _LONGEST_SECONDS))


class BindingWatch:
    """Watches claims and sets the conditions of those with devices in `pool`, while binding conditions are `wanted`.
    `boundary` is that of the work for one claim.
    """

    def __init__(
        self,
        connection: Connection,
        pool: str,
        wanted: Callable[[], bool],
        fitness: Fitness,
        boundary: ClaimBoundary,
    ) -> None:
        self._client = ApiClient(connection)
        self._api = ClaimStatusApi(connection)
        self._pool = pool
        self._wanted = wanted
        self._fitness = fitness
        self._boundary = boundary
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._watcher: Watcher | None = None
        self._worker = Worker("bind claims", self._round, at_end=self._stop_watching)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """Stop watching. The threads are daemons, so callers need not wait for them."""
        self._worker.stop()

    # The watcher's thread

    def _kept(self, claim: JSON) -> JSON:
        """The part of a claim that is kept: everything, or only the UID of a claim that does not concern this node."""
        with self._boundary.around("bind claim", _ref(claim)):
            if any(map(_waits, results(claim, self._pool))):
                return claim
        return {"metadata": {"uid": claim["metadata"]["uid"]}}

    def _listed(self, claims: list[JSON]) -> None:
        with self._lock:
            self._waiting.clear()
        for claim in claims:
            self._seen("ADDED", claim)

    def _seen(self, event: str, claim: JSON) -> None:
        uid = claim["metadata"]["uid"]
        concerned = event != "DELETED" and "status" in claim
        with self._lock:
            if concerned:
                self._waiting[uid] = _Waiting(claim)
            else:
                self._waiting.pop(uid, None)
        if concerned:
            self._worker.wake()

    # This object's thread

    def _round(self) -> float:
        with contained("watch claims", self._pool, self._boundary.count):
            try:
                self._watch()
            except ApiError as error:
                log.info("claims cannot be watched yet: %s", error)
        with self._lock:
            waiting = list(self._waiting.items())
        for uid, item in waiting:
            if item.due <= time.monotonic() and self._is_said(item):
                with self._lock:
                    if self._waiting.get(uid) is item:
                        del self._waiting[uid]
        with self._lock:
            return _RETRY_SECONDS if self._waiting else _POLICY_SECONDS

    def _watch(self) -> None:
        """Start or stop watching, as wanted. Raises ApiError."""
        wanted = self._wanted()
        if self._watcher is not None and (not wanted or self._watcher.missing.is_set()):
            self._stop_watching()
            with self._lock:
                self._waiting.clear()
        if wanted and self._watcher is None:
            kind = claims_of(newest_dialect(self._client))
            self._watcher = Watcher(
                self._client,
                kind,
                keep=self._kept,
                on_list=self._listed,
                on_event=self._seen,
                count=self._boundary.count,
            )
            self._watcher.start()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = None

    def _is_said(self, waiting: _Waiting) -> bool:
        """Set the conditions. True if nothing is left to do. After an unexpected error, tries again after growing
        pauses.
        """

        def failed(_: Exception) -> None:
            waiting.due = time.monotonic() + waiting.backoff.pause()

        with self._boundary.around("bind claim", _ref(waiting.claim), failed):
            return self._say(waiting.claim)
        return False

    def _say(self, claim: JSON) -> bool:
        """Set the conditions. True if that is done or pointless."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ref = _ref(claim)
        fields = {"claim_uid": ref.uid}
        try:
            stored = self._api.read(ref)
            found = binding_entries(stored.view(), self._pool, self._fitness, now) if stored.uid == ref.uid else None
            if found is not None:
                self._api.write(stored, ref, self._pool, found, PART)
                log.info("binding conditions are set", extra={**fields, "entries": len(found)})
        except NotFoundError:
            return True
        except LookupError as error:
            log.debug("the state of a claim's devices is still unknown: %s", error, extra=fields)
            return False
        except ApiError as error:
            log.warning("binding conditions cannot be set; trying again later: %s", error, extra=fields)
            return False
        return True
