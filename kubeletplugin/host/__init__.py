# SPDX-License-Identifier: Apache-2.0
"""Programs, kernel modules and processes of the host.

`programs` runs programs with the host's folder as their root, `modules` finds and loads the vfio driver of a device,
and `openers` finds the processes that have a device node open.
"""
