# SPDX-License-Identifier: Apache-2.0
"""Binding GPUs to a vfio driver for virtual machines, and back.

`passthrough` has the plan of a claim for them, `binder` the changes of a GPU, and `writes` the writes to sysfs with a
time limit.
"""
