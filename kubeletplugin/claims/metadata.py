# SPDX-License-Identifier: Apache-2.0
"""The part of claims' CDI specs for the files with the attributes of their devices (`containers.metadata`)."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from dra_driver.kube.resource import AttributeValue, ResourceClaim

from ..containers import cdi
from ..containers.metadata import Attributes, MetadataFiles, metadata_device
from ..errors import ClaimGoneError
from .model import Record
from .reader import FetchClaim

_REMEMBERED: Final = 256


class ClaimMetadata:
    """The part of claims' CDI specs for metadata files. `edits` is called when a spec is written, `remove` when it is
    removed.

    Records do not have what the files need. So claims are kept when they are fetched from the API server (`remember`).
    Without the claim, a spec is written with the existing files, and `fetch` reads the claim again only if a file is
    missing or invalid. `attributes` returns the published attributes. If not `enabled`, no files are written, but
    existing ones are used and removed.
    """

    def __init__(self, files: MetadataFiles, attributes: Attributes, fetch: FetchClaim, *, enabled: bool) -> None:
        self._files = files
        self._attributes = attributes
        self._fetch = fetch
        self._enabled = enabled
        self._lock = threading.Lock()
        self._claims: OrderedDict[str, ResourceClaim] = OrderedDict()

    def remember(self, claim: ResourceClaim) -> ResourceClaim:
        """Keep a claim that may be about to be prepared, and return it."""
        if not self._enabled:
            return claim
        with self._lock:
            self._claims[claim.metadata.uid] = claim
            if len(self._claims) > _REMEMBERED:
                self._claims.popitem(last=False)
        return claim

    def edits(self, record: Record) -> dict[str, cdi.ContainerEdits]:
        """The CDI devices for the metadata files of `record`. Writes the files if necessary. Raises OSError and errors
        of `fetch`.
        """
        ref = record.plan.claim
        claim = self._forget(ref.uid)
        if claim is None:
            found = self._files.edits(ref.uid)
            wanted = {metadata_device(planned.request.partition("/")[0]) for planned in record.plan.devices}
            if not self._enabled or wanted <= found.keys():
                return found
            claim = self._fetch(ref)
            if claim.metadata.uid != ref.uid:
                raise ClaimGoneError(f"ResourceClaim {ref} has another UID now: it was deleted and created again")
        self._files.write(claim, lambda device: self._with_identity(device, record))
        return self._files.edits(ref.uid)

    def remove(self, uid: str) -> None:
        """Remove the claim's files. Raises OSError."""
        self._forget(uid)
        self._files.remove(uid)

    def claims(self) -> list[str]:
        """The UIDs of all claims with files."""
        return self._files.claims()

    def _forget(self, uid: str) -> ResourceClaim | None:
        with self._lock:
            return self._claims.pop(uid, None)

    def _with_identity(self, device: str, record: Record) -> Mapping[str, AttributeValue]:
        """The published attributes, with those by which a program finds the device although it is not published."""
        kind = next((planned.kind for planned in record.plan.devices if planned.name == device), None)
        identity = {} if kind is None else kind.identity(record.found.get(device, {}))
        return {**identity, **self._attributes(device)}
