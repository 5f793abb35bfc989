# SPDX-License-Identifier: Apache-2.0
"""JSON of every served version of resource.k8s.io <-> the vocabulary. Nothing else knows versions exist."""

from .decode import Decoded, decode
from .decode_claims import decode_claim, decode_claim_template, decode_class
from .decode_parts import decode_node
from .decode_slices import decode_slice
from .encode import encode_allocation, encode_claim_spec, encode_meta, encode_slice, encode_taint
from .fields import BY_API_VERSION, DIALECTS, GROUP, V1, V1BETA1, V1BETA2, DecodeError, Dialect, Fields, json_type

__all__ = [
    "BY_API_VERSION",
    "DIALECTS",
    "GROUP",
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
    "encode_allocation",
    "encode_claim_spec",
    "encode_meta",
    "encode_slice",
    "encode_taint",
    "json_type",
]
