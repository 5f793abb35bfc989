# SPDX-License-Identifier: Apache-2.0
"""Reads claims from the API server."""

from collections.abc import Callable
from typing import TypeVar

from dra_driver.kube.api import ApiClient, ApiError, Connection, Kind, NotFoundError, newest_dialect
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import claims_of
from dra_driver.kube.resource import AllocatedDevice, ResourceClaim
from dra_driver.kube.resource.codec import DecodeError, Dialect, decode_claim

from ..errors import ClaimGoneError, PrepareError
from .model import ClaimRef

T = TypeVar("T")

FetchClaim = Callable[[ClaimRef], ResourceClaim]
"""Reads a claim from the API server. May raise ApiError, PrepareError, or ClaimGoneError if there is no such claim."""


def is_gone(fetch: FetchClaim, ref: ClaimRef) -> bool | None:
    """Whether the API server has no such claim. None if it does not answer."""
    try:
        return fetch(ref).metadata.uid != ref.uid
    except ClaimGoneError:
        return True
    except ApiError:
        return None
    except PrepareError:  # the claim exists, but is invalid
        return False


def allocated(ref: ClaimRef, claim: ResourceClaim, driver: str) -> list[AllocatedDevice]:
    """The devices of `driver` that are allocated to the claim which kubelet calls `ref`. Raises PrepareError."""
    if claim.metadata.uid != ref.uid:
        raise PrepareError(
            f"ResourceClaim {ref} has UID {claim.metadata.uid}, not {ref.uid}: it was deleted and created again"
        )
    if claim.allocation is None:
        raise PrepareError(f"ResourceClaim {ref} is not allocated")
    return [result for result in claim.allocation.results if result.driver == driver]


class ClaimReader:
    """Reads claims in the newest API version of the server, which is found out once, and again if that version no
    longer exists after an upgrade of the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._client = ApiClient(connection)
        self._dialect: Dialect | None = None

    def __call__(self, ref: ClaimRef) -> ResourceClaim:
        """The claim. Raises ApiError, ClaimGoneError if there is none, or PrepareError if it is invalid."""
        try:
            value = self.get(ref)
        except NotFoundError:
            text = f"there is no ResourceClaim {ref}: it was deleted after the pod was scheduled"
            raise ClaimGoneError(text) from None
        try:
            return decode_claim(value, self.dialect(), strict=False)
        except DecodeError as error:
            raise PrepareError(f"ResourceClaim {ref} cannot be read: {error}") from None

    def get(self, ref: ClaimRef) -> JSON:
        """The claim as JSON. Raises ApiError, for example NotFoundError."""
        return self.in_newest_version(lambda kind: self._client.get(kind, ref.name, ref.namespace))

    def in_newest_version(self, request: Callable[[Kind], T]) -> T:
        """The answer to a request for a claim. Raises ApiError."""
        dialect = self.dialect()
        try:
            return request(claims_of(dialect))
        except NotFoundError:
            self._dialect = newest_dialect(self._client)
            if self._dialect == dialect:
                raise
            return request(claims_of(self._dialect))

    def dialect(self) -> Dialect:
        """The API version. Raises ApiError."""
        dialect = self._dialect = self._dialect or newest_dialect(self._client)
        return dialect
