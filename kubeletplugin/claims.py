# SPDX-License-Identifier: Apache-2.0
"""Reading the claims that kubelet only names."""

from dra_driver.cluster import ApiClient, Connection, NotFoundError, claims_of, newest_dialect
from dra_driver.resource import ResourceClaim
from dra_driver.resource.codec import DecodeError, Dialect, decode_claim

from .plan import ClaimRef, PrepareError


class ClaimReader:
    """Gets claims in the newest version of the API that the server has, which it asks for once."""

    def __init__(self, connection: Connection) -> None:
        self._client = ApiClient(connection)
        self._dialect: Dialect | None = None

    def __call__(self, ref: ClaimRef) -> ResourceClaim:
        """The claim. Raises ApiError, or PrepareError when there is none."""
        if self._dialect is None:
            self._dialect = newest_dialect(self._client)
        try:
            value = self._client.get(claims_of(self._dialect), ref.name, ref.namespace)
        except NotFoundError:
            raise PrepareError(f"there is no ResourceClaim {ref}: it was deleted after the pod was scheduled") from None
        try:
            return decode_claim(value, self._dialect, strict=False)
        except DecodeError as error:
            raise PrepareError(f"ResourceClaim {ref} cannot be read: {error}") from None
