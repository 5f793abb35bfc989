# SPDX-License-Identifier: Apache-2.0
"""list: what a collection holds, in pages.

A continue token names the revision of the first page and the key to go on after. Unlike those of
etcd, later pages show what there is when they are read.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Final

from .. import status
from ..kinds import Kind
from .selectors import Test
from .store import Record, Store

_FORMAT: Final = "meta.k8s.io/v1"
_INCONSISTENT: Final = -1
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list."""

    tests: tuple[Test, ...] = ()
    name: str = ""
    """The only name wanted (a metadata.name selector); it is tested as well."""
    limit: int = 0
    token: str = ""
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A list's result."""

    records: list[Record]
    revision: int
    token: str = ""
    remaining: int | None = None


def list_page(store: Store, kind: Kind, namespace: str, query: ListQuery) -> Page:
    """The matching objects of a namespace (empty: of all). Raises 400, 410 and 504."""
    collection = store.collection(kind.stored_in)
    revision, after = store.revision, ""
    records = collection.records
    keys = collection.ordered()
    if query.token:
        asked, after = _read_token(query.token)
        if asked != _INCONSISTENT:
            revision = asked
            if asked < collection.floor:
                raise _too_old(after)
    elif query.revision and query.revision > store.revision:
        raise status.too_large_resource_version(query.revision, store.revision)
    prefix = f"{namespace}/" if namespace else ""
    if query.name and (namespace or not kind.namespaced):
        only = prefix + query.name
        keys = [only] if only in records else []
    found: list[Record] = []
    for index, key in enumerate(keys):
        if key <= after or not key.startswith(prefix):
            continue
        record = records[key]
        if not all(test(record.object) for test in query.tests):
            continue
        if query.limit and len(found) == query.limit:
            last = found[-1].key
            remaining = None
            if not query.tests:
                remaining = sum(1 for other in keys[index:] if other.startswith(prefix))
            return Page(found, revision, _token(revision, last), remaining)
        found.append(record)
    return Page(found, revision)


def _token(revision: int, last: str) -> str:
    text = json.dumps({"v": _FORMAT, "rv": revision, "start": f"{last}\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, str]:
    try:
        padded = token + "=" * (-len(token) % 4)
        content = json.loads(base64.urlsafe_b64decode(padded))
        if content["v"] != _FORMAT:
            raise ValueError("unknown version")
        return int(content["rv"]), str(content["start"]).rstrip("\0")
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise status.bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def _too_old(after: str) -> status.ApiError:
    error = status.expired(_TOO_OLD)
    return GoneWithToken(error, _token(_INCONSISTENT, after))


class GoneWithToken(status.ApiError):
    """410 that offers a token for going on without consistency."""

    def __init__(self, error: status.ApiError, token: str) -> None:
        super().__init__(error.code, error.reason, str(error), error.details)
        self.token = token

    @property
    def status(self) -> dict[str, object]:
        """The Status, with the token where a list has it."""
        return {**super().status, "metadata": {"continue": self.token}}
