# SPDX-License-Identifier: Apache-2.0
"""Sizes that the resource.k8s.io API sets (Kubernetes 1.36; see types.go and validation.go there)."""

from typing import Final

DEVICES_PER_SLICE: Final = 128
DEVICES_PER_SLICE_WITH_EXTRAS: Final = 64
"""When any device of the slice has taints, consumes counters or has list attributes."""
COUNTER_SETS_PER_SLICE: Final = 8
COUNTERS_PER_SET: Final = 32
COUNTER_SETS_PER_DEVICE: Final = 2
SHARED_COUNTERS_PER_SLICE_1_34: Final = 32
"""Of all sets together, up to Kubernetes 1.34, where neither the sets nor the counters of one set have a limit."""
CONSUMED_COUNTERS_PER_DEVICE_1_34: Final = 32
CONSUMED_COUNTERS_PER_SLICE_1_34: Final = 1024
ATTRIBUTES_AND_CAPACITIES_PER_DEVICE: Final = 32
ATTRIBUTE_VALUES_PER_DEVICE: Final = 48
ATTRIBUTE_VALUE_BYTES: Final = 64
TAINTS_PER_DEVICE: Final = 16
BINDING_CONDITIONS: Final = 4
RESULTS_PER_CLAIM: Final = 32
"""Devices that one claim can be given."""
EXPRESSION_BYTES: Final = 10 * 1024
"""Longest CEL selector."""
OPAQUE_PARAMETERS_BYTES: Final = 10 * 1024
"""Largest opaque configuration."""
REQUESTS_PER_CLAIM: Final = 32
ALTERNATIVES_PER_REQUEST: Final = 8
CONSTRAINTS_PER_CLAIM: Final = 32
CONFIGS_PER_CLAIM: Final = 32
SELECTORS_PER_LIST: Final = 32
DRIVER_NAME_BYTES: Final = 63
POOL_NAME_BYTES: Final = 253
OBJECT_NAME_BYTES: Final = 253
LABEL_BYTES: Final = 63
IDENTIFIER_BYTES: Final = 32
