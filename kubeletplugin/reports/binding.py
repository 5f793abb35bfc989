# SPDX-License-Identifier: Apache-2.0
"""Binding conditions: a pod is bound to this node only once the plugin found its devices fit (KEP-5007).

Devices can be published with conditions that the scheduler waits for before it binds a pod. For a GPU the useful moment
is this: the device still exists on the node, the driver answers, and nothing is held against it. If so, the condition
is set True, once; if not, a failure condition is, and the scheduler takes another device instead of leaving the pod
where it cannot start. Claims have no node to select by, so this watches those of the whole cluster, and runs only when
conditions are named for it.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.cluster import ApiClient, ApiError, Connection, NotFoundError, Watcher, claims_of, newest_dialect

from .claimstatus import ClaimStatusApi
from .devicestatus import JSON, condition, entries, entry, results

log = logging.getLogger(__name__)

MANAGER: Final = "dra-kubeletplugin-binding"
"""Not that of device statuses: each manager's entries are replaced as a whole."""

_RETRY_SECONDS: Final = 2.0

Fitness = Callable[[str], str | None]
"""Why a device cannot be prepared, None when it can. Raises LookupError when that cannot be told now."""


def binding_entries(
    claim: Mapping[str, Any], pool: str, names: Collection[str], fitness: Fitness, now: str
) -> list[JSON] | None:
    """Entries of `status.devices` with those conditions in `names` that the scheduler waits for; None when there are
    none, or it was told already. Raises LookupError as `fitness` does.
    """
    told = {each.get("type") for one in entries(claim, pool) for each in one.get("conditions") or ()}
    if not told.isdisjoint(names):
        return None  # everything about a claim is told at once
    wanted: list[JSON] = []
    for result in results(claim, pool):
        asked = [one for one in result.get("bindingConditions") or () if one in names]
        if not asked:
            continue
        problem = fitness(result["device"])
        if problem is not None:
            asked = [one for one in result.get("bindingFailureConditions") or () if one in names]
        reason = "DeviceFit" if problem is None else "DeviceUnfit"
        message = problem or "the device is there and nothing is held against it"
        wanted.append(entry(result, [condition(one, True, reason, message, now) for one in asked]))
    return wanted if any(one["conditions"] for one in wanted) else None


class BindingWatch:
    """Watches claims and sets the conditions `names` of those with devices in `pool`."""

    def __init__(self, connection: Connection, pool: str, names: Collection[str], fitness: Fitness) -> None:
        self._client = ApiClient(connection)
        self._api = ClaimStatusApi(self._client, connection)
        self._pool = pool
        self._names = frozenset(names)
        self._fitness = fitness
        self._changed = threading.Condition()
        self._waiting: dict[str, JSON] = {}
        self._stopped = threading.Event()
        self._watcher: Watcher | None = None
        self._thread = threading.Thread(target=self._run, name="binding", daemon=True)

    def start(self) -> None:
        """Begin, as soon as the API server answers."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; the threads are daemons and need not be waited for."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.stop()
        with self._changed:
            self._changed.notify_all()

    # The watcher's thread

    def _listed(self, claims: list[JSON]) -> None:
        for claim in claims:
            self._seen("ADDED", claim)

    def _seen(self, event: str, claim: JSON) -> None:
        uid = claim["metadata"]["uid"]
        with self._changed:
            if event != "DELETED" and any(one.get("bindingConditions") for one in results(claim, self._pool)):
                self._waiting[uid] = claim
                self._changed.notify_all()
            else:
                self._waiting.pop(uid, None)

    # Its own

    def _run(self) -> None:
        while self._watcher is None and not self._stopped.is_set():
            try:
                kind = claims_of(newest_dialect(self._client))
            except ApiError as error:
                log.info("claims cannot be watched yet: %s", error)
                self._stopped.wait(_RETRY_SECONDS)
            else:
                self._watcher = Watcher(self._client, kind, on_list=self._listed, on_event=self._seen)
                self._watcher.start()
        while not self._stopped.is_set():
            with self._changed:
                claims = list(self._waiting.items())
                if not claims:
                    self._changed.wait()
            for uid, claim in claims:
                if self._say(claim):
                    with self._changed:
                        if self._waiting.get(uid) is claim:
                            del self._waiting[uid]
            if self._waiting:
                self._stopped.wait(_RETRY_SECONDS)

    def _say(self, claim: JSON) -> bool:
        """Set what is to be set; gives whether that is done, or pointless."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"claim_uid": claim["metadata"]["uid"]}
        try:
            found = binding_entries(claim, self._pool, self._names, self._fitness, now)
            if found is not None:
                self._api.apply(claim, found, MANAGER)
                log.info("binding conditions are set", extra={**fields, "entries": len(found)})
        except NotFoundError:
            return True
        except LookupError as error:
            log.debug("nothing can be said of a claim's devices yet: %s", error, extra=fields)
            return False
        except ApiError as error:
            log.warning("binding conditions cannot be set, which will be tried again: %s", error, extra=fields)
            return False
        return True
