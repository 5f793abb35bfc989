# SPDX-License-Identifier: Apache-2.0
"""The limits of the resource.k8s.io API (Kubernetes 1.36, types.go and validation.go)."""

from typing import Final

DEVICES_PER_SLICE: Final = 128
DEVICES_PER_SLICE_WITH_EXTRAS: Final = 64
"""The limit if a device of the slice has taints, consumes counters, or has an attribute with a list."""
COUNTER_SETS_PER_SLICE: Final = 8
COUNTERS_PER_SET: Final = 32
COUNTER_SETS_PER_DEVICE: Final = 2
SHARED_COUNTERS_PER_SLICE_1_34: Final = 32
"""The limit of all sets together in Kubernetes 1.34 and before. There, sets and counters of a set have no limit."""
CONSUMED_COUNTERS_PER_DEVICE_1_34: Final = 32
CONSUMED_COUNTERS_PER_SLICE_1_34: Final = 1024
ATTRIBUTES_AND_CAPACITIES_PER_DEVICE: Final = 32
ATTRIBUTE_VALUES_PER_DEVICE: Final = 48
ATTRIBUTE_VALUE_BYTES: Final = 64
TAINTS_PER_DEVICE: Final = 16
COMPATIBILITY_GROUPS: Final = 2
DERIVED_ATTRIBUTES: Final = 32
BINDING_CONDITIONS: Final = 4
RESULTS_PER_CLAIM: Final = 32
"""The number of devices that a claim can get."""
EXPRESSION_BYTES: Final = 10 * 1024
"""The size of a CEL selector."""
OPAQUE_PARAMETERS_BYTES: Final = 10 * 1024
"""The size of an opaque configuration."""
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
