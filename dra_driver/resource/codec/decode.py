# SPDX-License-Identifier: Apache-2.0
"""JSON objects of resource.k8s.io (any served version) into the vocabulary.

Checks form only: types, required fields and, when strict, that every field is known. What the
API server would refuse on other grounds is `dra_driver.resource.validation`'s to say, because a
stored object may break rules that are newer than itself.
"""

from collections.abc import Callable, Mapping

from ..claim import DeviceClass, ResourceClaim, ResourceClaimTemplate
from ..device import ResourceSlice
from ..meta import Node
from .decode_claims import decode_claim, decode_claim_template, decode_class
from .decode_parts import decode_node
from .decode_slices import decode_slice
from .fields import BY_API_VERSION, DIALECTS, GROUP, DecodeError, json_type

Decoded = ResourceSlice | DeviceClass | ResourceClaim | ResourceClaimTemplate | Node


def decode(value: object, *, strict: bool = True) -> Decoded:
    """The object that `value` (parsed JSON or YAML) describes.

    `strict` refuses unknown fields. Raises DecodeError, naming the field, for anything that is not
    a well-formed ResourceSlice, DeviceClass, ResourceClaim, ResourceClaimTemplate or Node.
    """
    if not isinstance(value, Mapping):
        raise DecodeError("", f"a Kubernetes object is a mapping, not {json_type(value)}")
    api_version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        raise DecodeError("", "not a Kubernetes object: apiVersion and kind are missing")
    if (api_version, kind) == ("v1", "Node"):
        return decode_node(value, strict=strict)
    dialect = BY_API_VERSION.get(api_version)
    if dialect is None:
        hint = f" (use {', '.join(d.api_version for d in DIALECTS)})" if api_version.startswith(GROUP + "/") else ""
        raise DecodeError("apiVersion", f"{api_version!r} is not supported for kind {kind!r}{hint}")
    decoders: dict[str, Callable[..., Decoded]] = {
        "ResourceSlice": decode_slice,
        "DeviceClass": decode_class,
        "ResourceClaim": decode_claim,
        "ResourceClaimTemplate": decode_claim_template,
    }
    if kind not in decoders:
        raise DecodeError("kind", f"{kind!r} of {api_version} is not supported (use {', '.join(decoders)})")
    return decoders[kind](value, dialect, strict=strict)
