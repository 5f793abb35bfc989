# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of resource.k8s.io as immutable values, the same for every API version.

`codec` turns JSON of the served versions into these types and back; `validation` knows what the
API server would refuse. Field meanings follow the API reference of Kubernetes 1.36.
"""

from .claim import (
    ALL,
    EXACT_COUNT,
    AllocatedConfiguration,
    AllocatedDevice,
    AllocationResult,
    ClaimConfiguration,
    ConsumerReference,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequirements,
    DeviceSubRequest,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimTemplate,
)
from .device import (
    AttributeList,
    AttributeValue,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceTaint,
    DeviceToleration,
    MalformedAttribute,
    RequestPolicy,
    RequestRange,
    ResourcePool,
    ResourceSlice,
    TaintEffect,
    attribute_kind,
)
from .meta import (
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
)
from .names import split_qualified_name
from .quantity import Format, Quantity, QuantityError
from .semver import Version

__all__ = [
    "ALL",
    "EXACT_COUNT",
    "AllocatedConfiguration",
    "AllocatedDevice",
    "AllocationResult",
    "AttributeList",
    "AttributeValue",
    "ClaimConfiguration",
    "ConsumerReference",
    "CounterConsumption",
    "CounterSet",
    "Device",
    "DeviceCapacity",
    "DeviceClaim",
    "DeviceClass",
    "DeviceConstraint",
    "DeviceRequest",
    "DeviceRequirements",
    "DeviceSubRequest",
    "DeviceTaint",
    "DeviceToleration",
    "Format",
    "MalformedAttribute",
    "Node",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "ObjectMeta",
    "OpaqueConfiguration",
    "OwnerReference",
    "Quantity",
    "QuantityError",
    "RequestPolicy",
    "RequestRange",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourcePool",
    "ResourceSlice",
    "TaintEffect",
    "Version",
    "attribute_kind",
    "split_qualified_name",
]
