# SPDX-License-Identifier: Apache-2.0
"""The dra-dryrun command: tells whether a pod or a claim would be scheduled, without submitting it.

`documents` reads YAML, `groups` tells which pods an object makes, and `workload` turns these into demands with their
claims. `inventory` and `world` read the cluster, `trial` and `evaluate` decide by the scheduler's rules, and
`report` prints the verdicts. `autoscale`, `drain`, `gangs`, `gpus`, `lint`, `migrate`, `repack` and `upgrade` are
subcommands with a folder of their own, and `kueue` tells whether a queue has quota for a workload.
"""

from typing import Final

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""
