# SPDX-License-Identifier: Apache-2.0
"""The administrator's policy for each GPU: whether it is published, how MIG is used, passthrough, health, shares.

`rules` has the policy as values, and `parse` reads its file. The official driver has one set of feature gates for all
nodes, some of which exclude each other. Here each GPU may have a different policy.
"""

from ...errors import PolicyError
from .parse import PolicyFile, load_policy
from .rules import Enforcement, GpuPolicy, GpuRule, HealthPolicy, MigPolicy, NodePolicy, PassthroughMode, ShareMode

__all__ = [
    "Enforcement",
    "GpuPolicy",
    "GpuRule",
    "HealthPolicy",
    "MigPolicy",
    "NodePolicy",
    "PassthroughMode",
    "PolicyError",
    "PolicyFile",
    "ShareMode",
    "load_policy",
]
