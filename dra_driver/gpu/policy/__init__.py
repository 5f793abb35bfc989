# SPDX-License-Identifier: Apache-2.0
"""What an administrator wants of each GPU: published or not, how MIG is used, passthrough, health checks, shares.

`rules` is the policy as values, `reading` its YAML form, `file` the file that is read anew when it changes. The
official driver has one set of feature gates for all nodes, some of which exclude each other; here each GPU may differ.
"""

from .file import PolicyFile
from .reading import PolicyError, load_policy
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
