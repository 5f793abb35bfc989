# SPDX-License-Identifier: Apache-2.0
"""Binding GPUs to a vfio driver for virtual machines, and back.

`binder` has the changes of a GPU, and `writes` the writes to sysfs with a time limit.
"""
