# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains among documents: each stands for the ResourceClaimTemplate that the cluster controller makes for it.

The claims of the template contain the UID of the ComputeDomain, which a manifest does not have. A UID is made up then:
no node can be in this domain yet.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from ..domains.names import CHANNEL_CLASS
from ..domains.objects import COMPUTE_DOMAINS, ComputeDomain, decode_domain
from ..domains.template import channel_claim
from ..kube.resource import ResourceClaimTemplate
from ..kube.resource.codec import V1, DecodeError, encode_claim_spec
from .documents import JSON, Document, DocumentError
from .status import Note
from .workload import Lookup, decode_document, nothing_else
from .world import TEMPLATE

KIND: Final = "ComputeDomain"
_FIELD: Final = "spec.channel.resourceClaimTemplate.name"


def is_domain(value: JSON) -> bool:
    """Whether an object (JSON) is a ComputeDomain."""
    return (value.get("apiVersion"), value.get("kind")) == (COMPUTE_DOMAINS.api_version, KIND)


def with_templates(
    documents: Sequence[Document], lookup: Lookup = nothing_else
) -> tuple[list[Document], tuple[Note, ...]]:
    """The documents, with a ResourceClaimTemplate in place of each ComputeDomain. A template that exists, among the
    documents or elsewhere (`lookup`), is not changed.

    Also errors about ComputeDomains that the API server refuses, or whose template the controller cannot make because
    another object has its name. Raises the exceptions of `lookup`.
    """
    given = {_key(document): document for document in documents if document.kind == TEMPLATE}
    named: dict[tuple[str, str], Document] = {}
    found: list[Document] = []
    errors: list[Note] = []
    for document in documents:
        try:
            found += _as_template(document, given, named, lookup) if is_domain(document.value) else [document]
        except DocumentError as error:
            errors += error.notes
    return found, tuple(errors)


def _as_template(
    document: Document,
    given: Mapping[tuple[str, str], Document],
    named: dict[tuple[str, str], Document],
    lookup: Lookup,
) -> Iterator[Document]:
    """The template of a ComputeDomain, unless it exists. Raises DocumentError."""
    domain = _decoded(document)
    key = domain.namespace or "default", domain.template
    other = named.setdefault(key, document)
    if other is not document:
        raise _taken(document, f"is also the template of {other}: each ComputeDomain needs its own")
    template = decode_document(given[key]) if key in given else lookup(TEMPLATE, *key)
    if not isinstance(template, ResourceClaimTemplate):
        yield replace(document, value=template_of(domain))
    elif all(required.device_class_name != CHANNEL_CLASS for _, required in template.spec.requirements):
        problem = "is the name of a template that is not a ComputeDomain's, which the controller does not replace"
        raise _taken(document, f"{problem}: choose another name")


def template_of(domain: ComputeDomain) -> JSON:
    """The claim template that the controller makes for the workload of a domain, without its metadata beside names."""
    uid = domain.uid or str(uuid5(NAMESPACE_DNS, f"{domain.name}.{domain.namespace}.{KIND}"))
    claim = channel_claim(uid, all_channels=domain.all_channels)
    return {
        "apiVersion": V1.api_version,
        "kind": TEMPLATE,
        "metadata": {"name": domain.template, **({"namespace": domain.namespace} if domain.namespace else {})},
        "spec": {"spec": encode_claim_spec(claim, V1)},
    }


def _key(document: Document) -> tuple[str, str]:
    metadata = document.value.get("metadata") or {}
    return metadata.get("namespace") or "default", metadata.get("name") or ""


def _decoded(document: Document) -> ComputeDomain:
    try:
        return decode_domain(document.value, strict=not document.stored)
    except DecodeError as error:
        raise DocumentError((document, error)) from None


def _taken(document: Document, problem: str) -> DocumentError:
    return DocumentError((document, DecodeError(_FIELD, problem)))
