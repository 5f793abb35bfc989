# SPDX-License-Identifier: Apache-2.0
"""What an administrator wants of each GPU: published or not, how MIG is used, passthrough, health checks, shares.

`rules` has the policy as values, `parse` reads its YAML form, and `options` has the flags and the file that is read
again when it changes. The official driver has one set of feature gates for all nodes, some of which exclude each
other; here each GPU may differ.
"""

from .options import PolicyFile
from .parse import PolicyError, load_policy
from .rules import GpuPolicy, GpuRule, HealthPolicy, MigPolicy, NodePolicy, Shares

__all__ = [
    "GpuPolicy",
    "GpuRule",
    "HealthPolicy",
    "MigPolicy",
    "NodePolicy",
    "PolicyError",
    "PolicyFile",
    "Shares",
    "load_policy",
]
