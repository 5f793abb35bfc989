# SPDX-License-Identifier: Apache-2.0
"""Conversion between JSON and the types of this package, for every served version of resource.k8s.io.

Other packages do not deal with versions. Decoding checks only the form: types, required fields and, if it is strict,
that every field is known. Other rules of the API server are in `dra_driver.kube.resource.validation`, because a stored
object may violate rules that are newer than the object.
"""

from collections.abc import Callable, Mapping

from ..claim import DeviceClass, ResourceClaim, ResourceClaimTemplate
from ..device import DeviceTaintRule, ResourceSlice
from ..meta import Node
from .decode_claims import decode_claim, decode_claim_template, decode_class
from .decode_slices import decode_slice, decode_taint_rule
from .encode import encode_allocation, encode_claim_spec, encode_meta, encode_slice, encode_taint_rule
from .fields import (
    BY_API_VERSION,
    DIALECTS,
    GROUP,
    V1,
    V1BETA1,
    V1BETA2,
    DecodeError,
    Dialect,
    Fields,
    decode_node,
    json_type,
)

__all__ = [
    "BY_API_VERSION",
    "DIALECTS",
    "GROUP",
    "TAINT_RULE_VERSIONS",
    "V1",
    "V1BETA1",
    "V1BETA2",
    "DecodeError",
    "Decoded",
    "Dialect",
    "Fields",
    "decode",
    "decode_claim",
    "decode_claim_template",
    "decode_class",
    "decode_node",
    "decode_slice",
    "decode_taint_rule",
    "encode_allocation",
    "encode_claim_spec",
    "encode_meta",
    "encode_slice",
    "encode_taint_rule",
    "json_type",
]

Decoded = ResourceSlice | DeviceTaintRule | DeviceClass | ResourceClaim | ResourceClaimTemplate | Node

TAINT_RULE_VERSIONS = tuple(f"{GROUP}/{version}" for version in ("v1", "v1beta2", "v1alpha3"))
"""The versions that DeviceTaintRules are served in, the newest first."""


def decode(value: object, *, strict: bool = True) -> Decoded:
    """The object in `value` (parsed JSON or YAML). `strict` refuses unknown fields, as is right for files of users.
    Objects that a server has stored are not refused: their `unread` names the fields that are unknown.

    Raises DecodeError, which names the field, if it is not a well-formed ResourceSlice, DeviceTaintRule, DeviceClass,
    ResourceClaim, ResourceClaimTemplate or Node.
    """
    if not isinstance(value, Mapping):
        raise DecodeError("", f"a Kubernetes object is a mapping, not {json_type(value)}")
    api_version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        raise DecodeError("", "not a Kubernetes object: apiVersion and kind are missing")
    if (api_version, kind) == ("v1", "Node"):
        return decode_node(value, strict=strict)
    if kind == "DeviceTaintRule" and api_version in TAINT_RULE_VERSIONS:
        return decode_taint_rule(value, strict=strict)
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
