# SPDX-License-Identifier: Apache-2.0
"""The API server's side of device statuses: a claim as it is, and our entries of `status.devices` applied to it.

Server-side apply writes and removes exactly what its field manager wrote before, whoever else writes to the claim, and
needs no resource version. The claim's UID goes with it, so that a claim made anew under the same name is refused.
"""

import json
from collections.abc import Sequence
from urllib.parse import urlencode

from dra_driver import DRIVER_NAME
from dra_driver.cluster import ApiClient, ApiError, Connection, NotFoundError, claims_of, newest_dialect
from dra_driver.cluster.errors import status_error
from dra_driver.resource.codec import Dialect

from ..hardware.targets import ClaimRef
from .devicestatus import JSON


class StatusIgnoredError(ApiError):
    """The server took the request and dropped `status.devices` from it."""


class ClaimStatusApi:
    """Reads claims and applies their device statuses, in the newest version of the API that the server has."""

    def __init__(self, client: ApiClient, connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self._dialect: Dialect | None = None

    def get(self, ref: ClaimRef) -> JSON:
        """The claim as JSON. Raises ApiError, among them NotFoundError."""
        dialect = self._dialect = self._dialect or newest_dialect(self._client)
        try:
            return self._client.get(claims_of(dialect), ref.name, ref.namespace)
        except NotFoundError:
            self._dialect = None  # perhaps the version is gone: ask next time
            raise

    def apply(self, claim: JSON, entries: Sequence[JSON], manager: str) -> None:
        """Make `entries` all that `manager` says about this driver's devices. Raises ApiError."""
        meta = claim["metadata"]
        kind = claims_of(self._dialect or newest_dialect(self._client))
        body: JSON = {
            "apiVersion": kind.api_version,
            "kind": "ResourceClaim",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": {"devices": list(entries)},
        }
        query = urlencode({"fieldManager": manager, "force": "true"})
        path = kind.path(meta["namespace"], meta["name"], "status")
        response = self._connection.request(
            "PATCH",
            f"{path}?{query}",
            body=json.dumps(body, separators=(",", ":")).encode(),
            content_type="application/apply-patch+yaml",  # JSON is YAML
        )
        if not 200 <= response.status < 300:
            raise status_error(f"PATCH {path}", response.status, response.data)
        stored = (json.loads(response.data).get("status") or {}).get("devices") or ()
        if entries and not any(one.get("driver") == DRIVER_NAME for one in stored):
            raise StatusIgnoredError("the API server drops it: its feature gate DRAResourceClaimDeviceStatus is off")
