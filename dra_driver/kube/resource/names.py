# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' rules for names in resource.k8s.io."""

import functools
import hashlib
import re

from . import limits

_HASH_DIGITS = 16
_LONGEST_KEY = limits.DRIVER_NAME_BYTES + 1 + limits.IDENTIFIER_BYTES
_REMEMBERED_KEYS = 1024

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LABEL_TEXT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)


def is_label(text: str) -> bool:
    """Whether the text is a DNS-1123 label, such as the name of a device, request, counter set or counter."""
    return len(text) <= limits.LABEL_BYTES and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str, longest: int = limits.OBJECT_NAME_BYTES) -> bool:
    """Whether the text is a DNS-1123 subdomain, such as the name of an object or driver."""
    return len(text) <= longest and _SUBDOMAIN.fullmatch(text) is not None


def object_name(text: str) -> str:
    """A subdomain as the name of an object. If it is too long, it is shortened and gets a hash at its end."""
    if len(text) <= limits.OBJECT_NAME_BYTES:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{text[: limits.OBJECT_NAME_BYTES - len(digest) - 1].rstrip('-.')}-{digest}"


def is_driver_name(text: str) -> bool:
    """Whether the text is the name of a DRA driver, or the domain of an attribute. Upper case is allowed."""
    return is_subdomain(text.lower(), limits.DRIVER_NAME_BYTES)


def is_pool_name(text: str) -> bool:
    """Whether the text is the name of a pool: subdomains separated by slashes."""
    return 0 < len(text) <= limits.POOL_NAME_BYTES and all(is_subdomain(part) for part in text.split("/"))


def is_identifier(text: str) -> bool:
    """Whether the text is a C identifier of at most 32 characters."""
    return len(text) <= limits.IDENTIFIER_BYTES and _IDENTIFIER.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether the text is the key of an attribute or capacity: `identifier` or `domain/identifier`."""
    return len(text) <= _LONGEST_KEY and _is_qualified_name(text)


@functools.lru_cache(_REMEMBERED_KEYS)
def _is_qualified_name(text: str) -> bool:
    """All devices of a cluster have the same few keys."""
    domain, slash, identifier = text.rpartition("/")
    return is_identifier(identifier) and (not slash or is_driver_name(domain))


def is_label_key(text: str) -> bool:
    """Whether the text is the key of a label or taint: `name` or `domain/name`."""
    domain, slash, name = text.rpartition("/")
    return is_label_value(name) and name != "" and (not slash or is_subdomain(domain))


def is_label_value(text: str) -> bool:
    """Whether the text is the value of a label or taint. It may be empty."""
    return text == "" or (len(text) <= limits.LABEL_BYTES and _LABEL_TEXT.fullmatch(text) is not None)
