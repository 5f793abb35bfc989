# SPDX-License-Identifier: Apache-2.0
"""Which representation a client wants: the Accept header.

JSON; of objects also as a Table, which is how kubectl asks, or as metadata only. Protobuf and YAML are not offered;
clients that prefer them accept JSON, too.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from .. import status

JSON: Final = "application/json"
OFFERED: Final = (JSON, f"{JSON};stream=watch")
_META_GROUP: Final = "meta.k8s.io"
_FORMS: Final = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_VERSIONS: Final = ("v1", "v1beta1")


@dataclass(frozen=True, slots=True)
class Media:
    """The representation to answer in."""

    form: str = ""
    """`Table` or `PartialObjectMetadata` instead of the objects themselves."""
    version: str = "v1"
    """Of the form's group, meta.k8s.io."""


PLAIN: Final = Media()


@lru_cache(maxsize=256)
def accept_terms(header: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The media types of an Accept header, most wanted first, with their parameters."""
    terms = []
    for index, term in enumerate(header.split(",")):
        kind, *parameters = (part.strip() for part in term.split(";"))
        pairs = tuple((key.strip(), value.strip()) for key, _, value in (text.partition("=") for text in parameters))
        terms.append((-_quality(dict(pairs).get("q", "")), index, kind.lower(), pairs))
    return tuple((kind, pairs) for _, _, kind, pairs in sorted(terms))


def _quality(text: str) -> float:
    """How much a media type is wanted; what is not a number counts as if it were not there."""
    try:
        return float(text)
    except ValueError:
        return 1.0


@lru_cache(maxsize=256)
def negotiate(header: str) -> Media:
    """The representation of objects for an Accept header. Raises 406 when nothing fits."""
    if not header.strip():
        return PLAIN
    for kind, pairs in accept_terms(header):
        parameters = dict(pairs)
        if kind not in (JSON, "application/*", "*/*"):
            continue
        form = parameters.get("as", "")
        if not form:
            return PLAIN
        known = form in _FORMS and parameters.get("g") == _META_GROUP and parameters.get("v") in _VERSIONS
        if known:
            return Media(form.removesuffix("List"), parameters["v"])
    raise status.not_acceptable(OFFERED)
