# SPDX-License-Identifier: Apache-2.0
"""The dra-dryrun command: which devices a claim would get, without submitting it.

`documents` reads YAML, `workload` turns pods and what makes pods into the claims they bring, `inventory` finds the
devices, `evaluate` runs the scheduler's allocator over them, `report` prints.
"""
