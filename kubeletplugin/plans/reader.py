# SPDX-License-Identifier: Apache-2.0
"""Reading the claims that kubelet only names."""

from dra_driver.cluster import ApiClient, Connection, NotFoundError, claims_of, newest_dialect
from dra_driver.cluster.client import JSON
from dra_driver.resource import ResourceClaim
from dra_driver.resource.codec import DecodeError, Dialect, decode_claim

from ..hardware.targets import ClaimGoneError, ClaimRef, PrepareError


class ClaimReader:
    """Gets claims in the newest version of the API that the server has, which it asks for once; again when that
    version is gone, as it may be after an upgrade of the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._client = ApiClient(connection)
        self._dialect: Dialect | None = None

    def __call__(self, ref: ClaimRef) -> ResourceClaim:
        """The claim. Raises ApiError, ClaimGoneError when there is none, or PrepareError when it makes no sense."""
        dialect = self._dialect or newest_dialect(self._client)
        value = self._get(ref, dialect)
        if value is None:
            newest = newest_dialect(self._client)
            if newest != dialect:
                dialect, value = newest, self._get(ref, newest)
        self._dialect = dialect
        if value is None:
            raise ClaimGoneError(f"there is no ResourceClaim {ref}: it was deleted after the pod was scheduled")
        try:
            return decode_claim(value, dialect, strict=False)
        except DecodeError as error:
            raise PrepareError(f"ResourceClaim {ref} cannot be read: {error}") from None

    def _get(self, ref: ClaimRef, dialect: Dialect) -> JSON | None:
        try:
            return self._client.get(claims_of(dialect), ref.name, ref.namespace)
        except NotFoundError:
            return None
