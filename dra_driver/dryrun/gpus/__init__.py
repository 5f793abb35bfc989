# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gpus`: who uses which GPU.

`items` chooses what is read of a snapshot. `collect` makes the nodes, GPUs and users (`model`, `users`) from slices and
claims, `selection` applies the filters, and `groups` joins what is equal. `report`, `tables` and `page` print them.
`watch` follows a cluster: `changes` as lines, `screen` on a terminal.
"""
